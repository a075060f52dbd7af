"""The write-ahead log over any sequence of appends, kills, stores and restarts."""

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from righttime.catalyst.log import LogEntry, WriteAheadLog
from righttime.ledger.state import LogPosition
from righttime.settings import load_settings

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        st.tuples(st.just("killed"), st.integers(1, 60)),
        st.tuples(st.just("store"), st.integers(0, 6)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=12,
)


@given(history=steps, file_bytes=st.sampled_from([1, 700, 10_000]))
def test_the_log_holds_every_accepted_row_that_is_not_stored(history: list[tuple[str, list[int] | int]], file_bytes: int) -> None:
    """Accepted records come back until their rows are stored; records that no ledger accepted never do; nothing is kept for ever."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(log_file_bytes=file_bytes)
        log = WriteAheadLog(Path(folder) / "log", settings=settings)
        begin = end = LogPosition(0, 0)
        accepted: list[int] = []
        last_id = stored = 0
        for kind, what in history:
            if kind == "append":
                assert isinstance(what, list)
                entries = [_entry(last_id + 1 + sum(what[:place]), rows) for place, rows in enumerate(what)]
                record = log.append(entries, at=end)
                begin, end = log.begin({("x", "p"): stored}, appended=record, end=record.end), record.end
                log.keep(record)
                log.release(begin, end=end)
                accepted.extend(range(last_id + 1, last_id + sum(what) + 1))
                last_id += sum(what)
            elif kind == "killed":
                assert isinstance(what, int)
                log.append([_entry(last_id + 1, 2)], at=end)
                newest = max((Path(folder) / "log").iterdir())
                newest.write_bytes(newest.read_bytes()[: -what if what < 50 else None])
                log, _ = _opened(folder, settings, begin, end)
            elif kind == "store":
                assert isinstance(what, int)
                stored = max(stored, last_id - what)
                begin = log.begin({("x", "p"): stored}, appended=None, end=end)
                log.release(begin, end=end)
            else:
                log, _ = _opened(folder, settings, begin, end)
            _, ids = _opened(folder, settings, begin, end)
            assert ids == sorted(ids)
            assert {row_id for row_id in accepted if row_id > stored} <= set(ids) <= set(accepted)
            if stored == last_id:
                assert ids == [] or kind != "store"


def _entry(first_id: int, rows: int) -> LogEntry:
    return LogEntry("x", "p", [(first_id, rows)], [], pa.table({"a": pa.array(range(first_id, first_id + rows), pa.int64())}))


def _opened(folder: str, settings: object, begin: LogPosition, end: LogPosition) -> tuple[WriteAheadLog, list[int]]:
    log = WriteAheadLog(Path(folder) / "log", settings=settings)  # type: ignore[arg-type]
    ids = []
    for entry in log.read(begin, end):
        assert entry.rows["a"].to_pylist() == [row_id for first, rows in entry.runs for row_id in range(first, first + rows)]
        ids.extend(entry.rows["a"].to_pylist())
    return log, ids
