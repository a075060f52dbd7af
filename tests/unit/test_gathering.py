"""Gathering: a query over thousands of small commits leaves few pieces behind, and nobody sees a difference."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import righttime as rt
from righttime.catalyst import gathering
from righttime.catalyst.producer import OwnRows
from righttime.catalyst.segments import Segment, rows_of
from righttime.catalyst.table import Piece
from righttime.changes.rows import Chunk
from tests.support.crash import engine_of
from tests.support.state_tables import asking, lane, tuples

# Blocks of numbers, and record batches.
COLUMNS = {"numbers": "k INT, v INT", "mixed": "k INT, v STRING"}


@pytest.fixture(params=COLUMNS)
def wh(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with rt.open(tmp_path / "wh") as opened:
        opened.create_table("x", COLUMNS[request.param], keys=["k"])
        yield opened


def row(wh: rt.Warehouse, key: int) -> tuple[Any, ...]:
    return (key, key if wh.schema("x").columns.field("v").type == "int32" else f"text {key}")


def load(wh: rt.Warehouse, keys: range, *, source: str = "p") -> None:
    with wh.producer(name=source) as producer:
        for key in keys:
            producer.insert("x", row(wh, key))
            producer.commit()


def by_files(wh: rt.Warehouse) -> list[tuple[Any, ...]]:
    """Read as Spark does."""
    snapshots = engine_of(wh).snapshots
    with snapshots.take(["x"], asking()) as snapshot:
        files = snapshots.files(snapshot.tables["x"])
        assert files is not None
        kept = [Segment.read(image, wh.schema("x").columns) for image in files.images]
        return [one for image in kept for one in tuples(image)]


def pieces(wh: rt.Warehouse, source: str = "p") -> int:
    return len(lane(wh, "x", source).pieces)


@pytest.mark.parametrize("read", [lambda wh: wh.read("x").rows(), by_files], ids=["read", "files"])
def test_a_query_leaves_few_pieces_of_many_small_commits(wh: rt.Warehouse, read: Any) -> None:
    """Row by row for ever: each query goes through what came since the last one, not through everything."""
    for first in range(0, 1000, 200):
        load(wh, range(first, first + 200))
        assert pieces(wh) >= 200
        assert sorted(read(wh)) == [row(wh, key) for key in range(first + 200)]
        assert pieces(wh) == 1
    memory = engine_of(wh).catalyst.tables["x"]
    assert memory.bytes_memory == sum(piece.content.nbytes for piece in lane(wh, "x").pieces)


def test_rows_of_two_sources_keep_their_ids(wh: rt.Warehouse) -> None:
    """Ids of a lane have gaps where the other's rows are; ends point at ids, so a deleted row stays the right one."""
    for number in range(200):
        load(wh, range(2 * number, 2 * number + 1), source="p")
        load(wh, range(2 * number + 1, 2 * number + 2), source="q")
    assert len(wh.read("x").rows()) == 400
    assert (pieces(wh, "p"), pieces(wh, "q")) == (1, 1)
    with wh.producer(name="p") as producer:
        producer.delete("x", where="k IN (7, 100, 399)")
        producer.commit()
    expected = [row(wh, key) for key in range(400) if key not in (7, 100, 399)]
    assert sorted(wh.read("x").rows()) == sorted(by_files(wh)) == expected
    wh.materialize("x")
    assert sorted(wh.read("x").rows()) == expected


def test_who_reads_an_older_cut_keeps_what_it_has(wh: rt.Warehouse) -> None:
    """A snapshot from before, and a cut in the middle of what is one piece by now."""
    load(wh, range(100))
    middle = wh.read("x").receipt
    load(wh, range(100, 200))
    snapshots = engine_of(wh).snapshots
    with snapshots.take(["x"], asking()) as snapshot:
        load(wh, range(200, 300))
        assert len(wh.read("x").rows()) == 300
        assert pieces(wh) == 1
        assert sorted(tuples(snapshots.rows(snapshot.tables["x"]))) == [row(wh, key) for key in range(200)]
    assert sorted(wh.read("x", as_of=middle.cut_us).rows()) == [row(wh, key) for key in range(100)]
    assert middle.verify().method == "rerun"


def test_uncommitted_rows_are_not_gathered(wh: rt.Warehouse) -> None:
    """A producer reads what it has not committed, and takes it back: that leaves the lane alone, and all of it."""
    snapshots = engine_of(wh).snapshots
    load(wh, range(100))
    with wh.producer(name="p") as producer:
        for key in range(100, 300):
            producer.insert("x", row(wh, key))
            producer._stage(producer._transaction()[0])
        with snapshots.take(["x"], asking(), own=OwnRows("p", {})) as snapshot:
            assert sorted(tuples(snapshots.rows(snapshot.tables["x"]))) == [row(wh, key) for key in range(300)]
        assert pieces(wh) == 201
        producer.rollback()
    assert pieces(wh) == 1
    assert sorted(wh.read("x").rows()) == [row(wh, key) for key in range(100)]


def test_pieces_that_went_meanwhile_stay_as_the_query_has_them(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another query gathers between the look and the gathering: the lane has other pieces then, and the answer is the same."""
    load(wh, range(100))

    def another_first(*arguments: Any) -> Any:
        monkeypatch.setattr("righttime.catalyst.gathering.rows_of", rows_of)
        wh.read("x")  # another query is quicker
        return rows_of(*arguments)

    monkeypatch.setattr("righttime.catalyst.gathering.rows_of", another_first)
    assert sorted(wh.read("x").rows()) == [row(wh, key) for key in range(100)]
    assert pieces(wh) == 1


def test_a_piece_that_is_asked_for_in_part_stays_whole(wh: rt.Warehouse) -> None:
    """Rows of it that the query does not read are somebody else's."""
    load(wh, range(100))
    wh.read("x")
    load(wh, range(100, 200))
    mine = lane(wh, "x")
    first_id, last_id = mine.pieces[0].first_id, mine.last_id
    slices = gathering.gathered(engine_of(wh).catalyst, wh.schema("x"), "p", mine.slices(first_id + 50, last_id))
    assert [part.rows for part in slices] == [50, 100]
    assert sorted(wh.read("x").rows()) == [row(wh, key) for key in range(200)]


@pytest.mark.parametrize("unique", [True, False])
def test_commits_that_look_at_every_row_leave_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: bool) -> None:
    """Each looks its key up among all rows, or its operations are settled: once through every commit before it would make the thousandth take long."""
    monkeypatch.setattr(gathering, "_MANY", 8)
    with rt.open(tmp_path / "w") as wh, wh.producer(name="p") as load:
        wh.create_table("t", "k INT, v INT", keys=["k"], unique=unique)
        for number in range(40):
            if number % 2:
                load.upsert("t", {"k": number % 5, "v": number})
            else:
                load.insert("t", (100 + number, number))
            load.commit()
            if not unique:
                engine_of(wh).settler.settle(["t"], engine_of(wh).catalyst.authority.read_us())
        lanes = engine_of(wh).catalyst.table("t").lanes.values()
        assert all(len(one.pieces) <= 9 for one in lanes)
        upserted = {number % 5: (number % 5, number) for number in range(1, 40, 2)}
        assert sorted(wh.read("t").rows()) == sorted([*upserted.values(), *((100 + number, number) for number in range(0, 40, 2))])


@pytest.mark.parametrize(("first_ids", "offsets"), [((7,), (0,)), ((7, 20, 21), (0, 3, 4))])
def test_ids_of_a_piece_are_those_of_its_runs(first_ids: tuple[int, ...], offsets: tuple[int, ...]) -> None:
    """Whichever part of it is asked for."""
    piece = Piece(Chunk(pa.RecordBatch.from_pydict({"k": list(range(6))})), first_ids, offsets)
    for start in range(7):
        for stop in range(start, 7):
            runs = [number for first, rows in piece.runs(start, stop) for number in range(first, first + rows)]
            assert piece.ids(start, stop).tolist() == runs
