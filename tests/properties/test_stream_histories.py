"""Any history of appends, restarts and sealings gives the rows of a plain list."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from righttime.errors.flows import ChangeRefused
from righttime.queues.streams import Streams
from righttime.settings import load_settings
from tests.support.crash_folder import crash_folder
from tests.support.stream_model import Refused, Row, StreamModel, rows_of

COLUMNS = ("id", "a", "b")
DDL = "id INT, a INT, b STRING"
ALWAYS = 10**15

types = st.sampled_from(["insert", "insert", "update_preimage", "update_postimage", "update_postimage", "delete"])
ids = st.sampled_from([0, 0, 1, 1, 2, 3, None])
values = st.sampled_from([None, 0, 1])
texts = st.sampled_from([None, "", "a text longer than eight bytes"])
change = st.fixed_dictionaries({"_change_type": types, "id": ids, "a": values, "b": texts, "as_alive": st.booleans()})
appends = st.lists(change, min_size=1, max_size=10)
histories = st.lists(st.tuples(appends, st.booleans()), min_size=2, max_size=8)  # each with or without a restart behind it


class Times:
    """Issues 10, 20, 30, …"""

    def __init__(self) -> None:
        self.last_us = 0

    def __call__(self, streams: Sequence[str], given_us: int | None) -> int:
        self.last_us = given_us if given_us is not None else self.last_us + 10
        return self.last_us


def opened(folder: Path, times: Times, *, segment_rows: int, log_bytes: int) -> Streams:
    return Streams(folder / "streams", settings=load_settings(stream_segment_rows=segment_rows, stream_log_bytes=log_bytes), issue=times, now_us=lambda: 2**60)


def known(model: StreamModel, changes: list[Row]) -> list[Row]:
    """Give some changes the values of the row that is alive, so that preimages fit and updates change nothing."""
    found = []
    for one in changes:
        alive = model.living.get((one["id"],)) if one["as_alive"] else None
        found.append({name: (alive[name] if alive is not None and name in ("a", "b") else one[name]) for name in ("_change_type", *COLUMNS)})
    return found


@settings(max_examples=80)
@given(
    history=histories,
    keyed=st.sampled_from([True, True, True, False]),
    dead_letters=st.sampled_from([True, True, False]),
    arrow=st.booleans(),
    segment_rows=st.sampled_from([1, 5, 1000]),
    log_bytes=st.sampled_from([1, 3000, 10**6]),
)
def test_a_stream_stores_what_a_list_does(
    history: list[tuple[list[Row], bool]], keyed: bool, dead_letters: bool, arrow: bool, segment_rows: int, log_bytes: int
) -> None:
    """Rows, numbers, weights, since and ordinals, refusals and dead letters are those of the model, whatever is sealed or restarted in between."""
    with crash_folder() as folder:
        times = Times()
        streams = opened(folder, times, segment_rows=segment_rows, log_bytes=log_bytes)
        keys = ("id",) if keyed else ()
        streams.create("line", DDL, keys=keys, on_bad="dead_letter" if dead_letters else "error")
        model = StreamModel(COLUMNS, keys, dead_letters)
        for changes, restart in history:
            _append(streams, model, known(model, changes), times, arrow=arrow)
            if restart:
                streams.close()
                streams = opened(folder, times, segment_rows=segment_rows, log_bytes=log_bytes)
        _compare(streams, model)
        streams.close()
        _compare(opened(folder, times, segment_rows=segment_rows, log_bytes=log_bytes), model)


def _append(streams: Streams, model: StreamModel, changes: list[Row], times: Times, *, arrow: bool) -> None:
    given = _arrow(changes) if arrow else changes
    rows: int | Refused
    try:
        rows = model.append(changes, times.last_us + 10, "T")
    except Refused as refused:
        rows = refused
    try:
        appended = streams.append({"line": given}, transaction="T")
    except ChangeRefused as error:
        assert isinstance(rows, Refused), error
        assert (error.context["row"], error.code) == (rows.row, rows.code)
    else:
        assert appended.rows == rows
        assert appended.numbers == ({"line": len(model.commits)} if rows else {})


def _arrow(changes: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(changes, pa.schema([("_change_type", pa.string()), ("b", pa.large_string()), ("a", pa.int64()), ("id", pa.int32())]))


def _compare(streams: Streams, model: StreamModel) -> None:
    assert rows_of(streams.table("line", 0, ALWAYS)) == [_in_order(row) for row in model.stored]
    assert streams.dead_letters("line").column("code").to_pylist() == model.letters
    for after_us in (0, 10, 35):
        for up_to_us in (0, 20, 45, ALWAYS):
            expected = [_in_order(row) for row in model.between(after_us, up_to_us)]
            paths, rest = streams.files("line", after_us, up_to_us)
            parts = [pq.read_table(path).cast(rest.schema) for path in paths]
            assert sorted(rows_of(pa.concat_tables([*parts, rest])), key=lambda row: row["_seq"]) == expected
            assert streams.rows_between("line", after_us, up_to_us) == len(expected)
        later = [time for time in model.commits if time > after_us]
        cut = streams.cut("line", after_us)
        assert streams.first_after("line", after_us) == (later[0] if later else None) == (cut.first_outside.time_us if cut.first_outside else None)
        assert (cut.last.number if cut.last else 0) == len(model.commits) - len(later)


def _in_order(row: Row) -> Row:
    names = (*COLUMNS, "_change_type", "_commit_version", "_commit_timestamp", "_transaction", "_seq", "_w", "_since", "_ordinal")
    return {name: row[name] for name in names}


@settings(max_examples=50)
@given(history=st.lists(appends, max_size=6), up_to=st.integers(0, 6))
def test_the_weights_of_any_prefix_sum_up_to_the_living_rows(history: list[list[Row]], up_to: int) -> None:
    """Each removed row is the exact negative of an earlier one: at every commit the sum has every living row once and nothing else."""
    with crash_folder() as folder:
        times = Times()
        streams = opened(folder, times, segment_rows=4, log_bytes=10**6)
        streams.create("line", DDL, keys=["id"], on_bad="dead_letter")
        model = StreamModel(COLUMNS, ("id",), dead_letters=True)
        for place, changes in enumerate(history[:up_to]):
            changes = known(model, changes)
            streams.append({"line": changes})
            model.append(changes, 10 * (place + 1))
        sums: dict[tuple[Any, ...], int] = {}
        for row in rows_of(streams.table("line", 0, ALWAYS)):
            image = tuple(row[name] for name in (*COLUMNS, "_ordinal"))
            sums[image] = sums.get(image, 0) + row["_w"]
        assert {image[:-1] for image, weight in sums.items() if weight} == {tuple(row[name] for name in COLUMNS) for row in model.living.values()}
        assert set(sums.values()) <= {0, 1}
