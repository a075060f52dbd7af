"""State of flows: what drains leave behind is there whole, can be cut off at any job, and means the same when it is summed up."""

import errno
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.errors import CommitFailed, WarehouseDamaged, WarehouseNewer
from righttime.errors.flows import FlowChanged, StatesAhead
from righttime.pipeline.compaction import files_to_sum, summed
from righttime.pipeline.manifests import StateFile
from righttime.pipeline.spans import spans_of
from righttime.pipeline.states import StateStore

PART = ("03_join", "left")
DRAINS = 50
SCHEMA = pa.schema([("k", pa.int32()), ("_job", pa.int64()), ("_w", pa.int64())])


def rows(*given: tuple[int | None, int, int]) -> pa.Table:
    """(k, job, weight)"""
    return pa.table([pa.array([row[place] for row in given], field.type) for place, field in enumerate(SCHEMA)], schema=SCHEMA)


def content(store: StateStore, *, up_to_job: int | None = None) -> Counter[int | None]:
    """The sum of the weights by k."""
    table = store.table(*PART, up_to_job=up_to_job)
    sums: Counter[int | None] = Counter()
    for row in table.to_pylist() if table is not None else []:
        sums[row["k"]] += row["_w"]
    return Counter({k: count for k, count in sums.items() if count})


def files(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.parquet")


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """Three drains: jobs 1 and 2, job 3, jobs 4 to 6."""
    made = StateStore(tmp_path / "flow", "f1", flow="sales")
    made.append(1, 2, {PART: rows((1, 1, 1), (None, 2, 1))})
    made.append(3, 3, {PART: rows((1, 3, -1), (2, 3, 1))})
    made.append(4, 6, {PART: rows((2, 4, 1), (2, 6, -2)), ("x", "empty"): rows()})
    return made


def test_what_was_appended_is_there_after_opening_again(store: StateStore, tmp_path: Path) -> None:
    """Also up to any job; parts without rows have no file."""
    for one in (store, StateStore(tmp_path / "flow", "f1")):
        assert one.last_job == 6
        assert [content(one, up_to_job=job) for job in (0, 1, 3, 4, 5)] == [{}, {1: 1}, {None: 1, 2: 1}, {None: 1, 2: 2}, {None: 1, 2: 2}]
        assert content(one) == {None: 1}
        assert one.table("x", "empty") is None
    assert len(list(files(tmp_path))) == 3


def test_a_state_belongs_to_one_declaration(store: StateStore, tmp_path: Path) -> None:
    """Another fingerprint is refused, unless one begins anew."""
    with pytest.raises(FlowChanged) as refused:
        StateStore(tmp_path / "flow", "f2", flow="sales")
    assert refused.value.code == "flow.changed"
    anew = StateStore(tmp_path / "flow", "f2", flow="sales", anew=True)
    assert (anew.last_job, content(anew)) == (None, {})
    assert list(files(tmp_path)) == []


def test_drains_come_in_order_and_once(store: StateStore) -> None:
    """A drain that is there already is a mistake of the caller."""
    with pytest.raises(AssertionError):
        store.append(6, 7, {})
    store.append(9, 9, {})
    assert store.last_job == 9


@pytest.mark.parametrize("job", range(8))
def test_jobs_that_were_not_published_are_forgotten(store: StateStore, tmp_path: Path, job: int) -> None:
    """At any job, also in the middle of a drain; what comes after takes its place."""
    expected = content(store, up_to_job=job)
    store.forget_after(job)
    for one in (store, StateStore(tmp_path / "flow", "f1")):
        assert content(one) == expected
        assert (one.last_job or 0) == min(job, 6)
    assert len(list(files(tmp_path))) == (job > 0) + (job > 2) + (job > 3)
    store.append(job + 1, job + 1, {PART: rows((7, job + 1, 5))})
    assert content(StateStore(tmp_path / "flow", "f1")) == expected + Counter({7: 5})


def test_clear_forgets_everything(store: StateStore, tmp_path: Path) -> None:
    """The flow starts from nothing, with the same declaration."""
    store.clear()
    assert (store.last_job, content(store), list(files(tmp_path))) == (None, {}, [])
    store.append(1, 1, {PART: rows((1, 1, 1))})
    assert content(StateStore(tmp_path / "flow", "f1")) == {1: 1}


def test_a_torn_manifest_at_the_end_is_ignored_and_its_files_go(store: StateStore, tmp_path: Path) -> None:
    """Nobody was told of that drain. Temporary files and staged ones go as well."""
    manifest = tmp_path / "flow" / "drain-000000000004.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    (tmp_path / "flow" / "_righttime_0.tmp").write_bytes(b"{")
    (store.staging() / "some.parquet").write_bytes(b"")
    again = StateStore(tmp_path / "flow", "f1")
    assert (again.last_job, content(again)) == (3, {None: 1, 2: 1})
    assert len(list(files(tmp_path))) == 2
    assert not manifest.exists()
    assert not list((tmp_path / "flow").glob("_*"))
    again.append(4, 4, {PART: rows((9, 4, 1))})
    assert content(StateStore(tmp_path / "flow", "f1")) == {None: 1, 2: 1, 9: 1}


def test_a_torn_manifest_that_others_build_on_is_damage(store: StateStore, tmp_path: Path) -> None:
    """It is never taken for an empty drain."""
    manifest = tmp_path / "flow" / "drain-000000000003.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"last_job": 3', b'"last_job": 2'))
    with pytest.raises(WarehouseDamaged, match="drain-000000000003"):
        StateStore(tmp_path / "flow", "f1")


def test_a_compacted_state_means_the_same_and_old_plans_can_still_read(store: StateStore, tmp_path: Path) -> None:
    """Files that a plan may have in its list stay until the next drain is appended; published jobs are not told apart any more."""
    old = list(files(tmp_path))
    assert store.compact(3, files_max=5) == 0
    assert store.compact(3, files_max=1) == 1
    assert all(file.exists() for file in old)
    for one in (store, StateStore(tmp_path / "flow", "f1")):
        assert [content(one, up_to_job=job) for job in (3, 4, 6)] == [{None: 1, 2: 1}, {None: 1, 2: 2}, {None: 1}]
        with pytest.raises(StatesAhead) as ahead:
            one.forget_after(2)
        assert (ahead.value.code, ahead.value.context["known"]) == ("flow.states_ahead", 3)
    store.append(7, 7, {PART: rows((8, 7, 1))})
    assert len(list(files(tmp_path))) == 3
    store.forget_after(5)
    assert content(StateStore(tmp_path / "flow", "f1")) == {None: 1, 2: 2}


def test_rows_are_counted_in_files_that_are_state(store: StateStore) -> None:
    """Not in those that were summed up, though they are still there for who reads them."""
    ((_, every),) = store.files(*PART)
    assert store.rows_in([]) == 0
    assert (store.rows_in(every[:1]), store.rows_in(every[1:])) == (2, 4)
    store.compact(3, files_max=1)
    assert all(Path(file).exists() for file in every)
    assert store.rows_in(every[2:]) == 2
    assert store.rows_in(every[:1]) is None
    assert store.rows_in(every) is None


def test_compaction_without_anything_to_put_together_changes_nothing(store: StateStore) -> None:
    """Many files that are each too large to be read together with another stay as they are; columns that may not be null are read with others that may."""
    assert store.compact(6, files_max=0, rows_max=1) == 0
    strict = pa.schema([field.with_nullable(field.name == "k") for field in SCHEMA])
    store.append(7, 7, {PART: rows((5, 7, 1)).cast(strict)})
    assert content(store) == {None: 1, 5: 1}
    assert store.compact(7, files_max=0) == 1
    assert content(store) == {None: 1, 5: 1}


def test_compaction_again_and_again_keeps_few_files(tmp_path: Path) -> None:
    """Many drains end in a handful of files and manifests, with the right sums; the same job may be compacted twice."""
    store = StateStore(tmp_path / "flow", "f1")
    for job in range(1, DRAINS + 1):
        store.append(job, job, {PART: rows((job % 7, job, 1), ((job + 1) % 7, job, -1))})
        store.compact(job, files_max=4)
        store.compact(job, files_max=1)
    expected = Counter(job % 7 for job in range(1, DRAINS + 1))
    expected.subtract((job + 1) % 7 for job in range(1, DRAINS + 1))
    again = StateStore(tmp_path / "flow", "f1")
    assert content(again) == Counter({k: count for k, count in expected.items() if count})
    assert len(list(files(tmp_path))) <= 6
    assert len(list((tmp_path / "flow").glob("*-*.json"))) <= 6


def test_files_of_executors_are_moved_in(store: StateStore, tmp_path: Path) -> None:
    """Several files for one part, empty ones left out; the staging folder is not part of the state."""
    folder = store.staging()
    paths = [folder / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        pq.write_table(rows(*[(number, 7, 1)] * number), path)
    store.append(7, 7, {PART: paths})
    assert content(StateStore(tmp_path / "flow", "f1")) == {None: 1, 1: 1, 2: 2}


def test_a_disk_that_fails_is_a_coded_error_and_nothing_is_kept(store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of steps and parts may have any character and length."""

    def full(paths: Sequence[Path]) -> None:
        assert paths and all(path.exists() for path in paths)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("righttime.pipeline.states.sync_files", full)
        with pytest.raises(CommitFailed, match="No space"):
            store.append(7, 7, {("a/b *", "c%d"): rows((1, 7, 1))})
    assert StateStore(tmp_path / "flow", "f1").last_job == 6
    names = [("a/b *", "c%d"), ("into_" + "売" * 200, "keys"), ("into_" + "売" * 201, "keys")]
    store.append(7, 7, {name: rows(*[(1, 7, 1)] * (place + 1)) for place, name in enumerate(names)})
    again = StateStore(tmp_path / "flow", "f1")
    assert [len(again.table(*name) or ()) for name in names] == [1, 2, 3]


VALUES = st.tuples(
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, "", "x"]),
    st.sampled_from([None, 0.0, -0.0, math.nan, math.inf]),
    st.sampled_from([-2, -1, 1, 2]),
    st.sampled_from([Decimal(-(10**30)), Decimal(10**30), Decimal(0)]),
)
WIDE = pa.schema([("a", pa.int32()), ("b", pa.string()), ("f", pa.float64()), ("_job", pa.int64()), ("_w", pa.int64()), ("_acc_s", pa.decimal128(38, 4))])


@given(parts=st.lists(st.lists(VALUES, min_size=1, max_size=12), min_size=1, max_size=4), keyed=st.booleans())
def test_a_sum_of_files_adds_weights_and_accumulators_by_all_other_columns(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Any]], keyed: bool
) -> None:
    """Nulls and NaN are equal to themselves; rows that come to nothing are gone, unless an accumulator is left."""
    folder = tmp_path_factory.mktemp("sums")
    schema = WIDE if keyed else pa.schema([WIDE.field(name) for name in ("_job", "_w", "_acc_s")])
    for number, some in enumerate(parts):
        values = [(a, b, f, 1, w, s) for a, b, f, w, s in some]
        table = pa.table([pa.array([row[place] for row in values], field.type) for place, field in enumerate(WIDE)], schema=WIDE)
        pq.write_table(table.select(schema.names), folder / f"{number}.parquet")
    result = summed([folder / f"{number}.parquet" for number in range(len(parts))], job=9)

    def sums(values: list[tuple[Any, ...]]) -> dict[str, tuple[int, Decimal]]:
        found: dict[str, tuple[int, Decimal]] = {}
        for *key, w, s in values:
            weight, more = found.get(repr(key), (0, Decimal(0)))
            found[repr(key)] = (weight + w, more + s)
        return {key: value for key, value in found.items() if value != (0, Decimal(0))}

    rows_found = [tuple(row[name] for name in schema.names if name != "_job") for row in result.to_pylist()]
    assert sums(rows_found) == sums([((a, b, f) if keyed else ()) + (w, s) for some in parts for a, b, f, w, s in some])
    assert len(sums(rows_found)) == len(rows_found)
    assert set(result["_job"].to_pylist()) <= {9}
    assert result.schema.names == schema.names


def test_rows_with_nested_values_are_summed_up(tmp_path: Path) -> None:
    """State that has lists, maps or structs in it shrinks as any other, whether or not a plan knew that there are no nulls inside."""
    lists, fields = pa.list_(pa.field("element", pa.int32(), nullable=False)), pa.struct([pa.field("x", pa.float64(), nullable=False)])
    known = {"k": [1, 1, 2], "a": pa.array([[1], [1], None], lists), "b": pa.array([{"x": 0.0}, {"x": 2.0}, None], fields), "_job": [1, 1, 1], "_w": [1, 1, 2]}
    maybe = {"k": [1, 1], "a": pa.array([[1], [2]], pa.list_(pa.int32())), "b": [{"x": -0.0}, {"x": 2.0}], "_job": [2, 2], "_w": [-1, 1]}
    for name, rows in (("1", known), ("2", maybe)):
        pq.write_table(pa.table(rows), tmp_path / name)
    found = summed([tmp_path / "1", tmp_path / "2"], job=5).sort_by([("k", "ascending"), ("_w", "ascending")]).to_pylist()
    assert sorted(found, key=repr) == sorted(
        [
            {"k": 1, "a": [1], "b": {"x": 2.0}, "_job": 5, "_w": 1},
            {"k": 1, "a": [2], "b": {"x": 2.0}, "_job": 5, "_w": 1},
            {"k": 2, "a": None, "b": None, "_job": 5, "_w": 2},
        ],
        key=repr,
    )


def test_large_files_are_left_until_the_small_ones_have_grown() -> None:
    """A base of a million rows is not written anew for every ten thousand."""
    base, small = StateFile("base", 1_000_000), [StateFile(f"{number}", 10_000) for number in range(20)]
    assert files_to_sum([base, *small], rows_max=10**9) == small
    assert files_to_sum([base, *small, StateFile("more", 400_000)], rows_max=10**9) == [*small, StateFile("more", 400_000), base]
    assert files_to_sum([base, *small], rows_max=50_000) == small[:5]
    assert files_to_sum([base], rows_max=10**9) == []


def _rewrite(folder: Path, number: int) -> None:
    """Give all manifests another format; 1 is what the first version wrote, and 2 has the ends of spans only."""
    for path in folder.glob("*-*.json"):
        manifest = json.loads(path.read_bytes())["manifest"] | {"format": number}
        if number == 2:
            manifest["parts"] = [[step, part, [[*file[:3], _ends(file[3])] for file in files]] for step, part, files in manifest["parts"]]
        if number == 1:
            manifest["parts"] = [[step, part, [[_moved(folder, step, part, file[0]), file[1]] for file in files]] for step, part, files in manifest["parts"]]
        crc = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
        path.write_text(json.dumps({"crc": crc, "manifest": manifest}), encoding="utf-8")


def _ends(spans: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: {"least": ends[0] if ends else None, "greatest": ends[-1] if ends else None, "nulls": nulls} for name, (nulls, *ends) in spans.items()}


def _moved(folder: Path, step: str, part: str, name: str) -> str:
    """Move a file to where the first version had it, in a folder of its step and part; return its name."""
    moved = folder / step / part / Path(name).name
    moved.parent.mkdir(parents=True, exist_ok=True)
    (folder / name).rename(moved)
    return str(moved.relative_to(folder))


def test_state_of_the_first_version_is_read_and_gone_on_with(store: StateStore, tmp_path: Path) -> None:
    """It is whole, and no torn drain that nobody was told of: totals without it would be wrong."""
    expected = content(store)
    _rewrite(tmp_path / "flow", 1)
    again = StateStore(tmp_path / "flow", "f1")
    assert (again.last_job, content(again)) == (6, expected)
    again.append(7, 8, {PART: rows((1, 7, 1), (9, 8, 1))})
    assert again.compact(6, files_max=1) == 1
    again.append(9, 9, {PART: rows((9, 9, 1))})  # after which the old files go
    again.forget_after(7)
    for one in (again, StateStore(tmp_path / "flow", "f1")):
        assert (one.last_job, content(one)) == (7, {**expected, 1: expected.get(1, 0) + 1})
    assert not list((tmp_path / "flow" / PART[0]).rglob("*.parquet"))


def wanted_files(store: StateStore, *k: int | None) -> int:
    """How many files of the part may have rows with these values of k."""
    spans = spans_of(pa.table({"k": pa.array(k, SCHEMA.field("k").type)}))
    return sum(len(files) for _, files in store.files(*PART, wanted=spans))


@pytest.mark.parametrize("before", [2, 3])
def test_files_are_told_apart_by_where_their_values_lie(tmp_path: Path, before: int) -> None:
    """In the columns that values are looked for in. What an earlier version wrote, with the ends only, is read more often and never missed."""
    store = StateStore(tmp_path / "flow", "f1", sought={PART[0]: frozenset(["k"])})
    store.append(1, 1, {PART: rows((1, 1, 1), (500, 1, 1), (900, 1, 1))})
    store.append(2, 2, {PART: rows((200, 2, 1), (None, 2, 1))})
    if before == 2:
        _rewrite(tmp_path / "flow", 2)
        store = StateStore(tmp_path / "flow", "f1", sought={PART[0]: frozenset(["k"])})
    assert [wanted_files(store, *k) for k in ((1,), (500, 200), (None,), (1000, 0), (150, 499, 901))] == [1, 2, 1, 0, 0 if before == 3 else 1]
    store.append(3, 3, {PART: rows((150, 3, 1), (700, 3, 1))})
    again = StateStore(tmp_path / "flow", "f1")
    for one in (store, again):
        assert (wanted_files(one, 700), wanted_files(one, 160)) == (1 if before == 3 else 2, 0 if before == 3 else 1)


def test_state_of_a_later_version_is_refused_and_stays(store: StateStore, tmp_path: Path) -> None:
    """Whoever has the later version can go on with it."""
    _rewrite(tmp_path / "flow", 99)
    with pytest.raises(WarehouseNewer, match="99"):
        StateStore(tmp_path / "flow", "f1")
    assert len(list((tmp_path / "flow").glob("drain-*.json"))) == 3
