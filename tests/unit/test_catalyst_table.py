"""Memory tables: lanes, pieces, and what may leave them."""

import pyarrow as pa

from righttime.catalyst.indexes import RowIds
from righttime.catalyst.table import Lane, MemoryTable, Piece
from righttime.changes.rows import Chunk


def chunk(rows: int) -> Chunk:
    return Chunk(pa.record_batch({"a": pa.array(range(rows), pa.int32())}))


def filled(*commits: tuple[int, int], ids: RowIds | None = None) -> Lane:
    """A lane with (time, rows) commits."""
    lane, ids = Lane("p"), ids or RowIds()
    for time_us, rows in commits:
        lane.add([chunk(rows)], ids)
        lane.commit(time_us)
    return lane


def ids_in(lane: Lane, first_id: int, last_id: int) -> list[int]:
    return [part.piece.id_at(position) for part in lane.slices(first_id, last_id) for position in range(part.start, part.stop)]


def test_slices_are_the_rows_of_an_interval() -> None:
    """Parts of pieces at both ends, whole ones between."""
    lane = filled((1, 3), (2, 3), (3, 3))

    assert ids_in(lane, 2, 8) == [2, 3, 4, 5, 6, 7, 8]
    assert [part.whole for part in lane.slices(2, 8)] == [False, True, False]
    assert ids_in(lane, 5, 4) == ids_in(lane, 10, 99) == []


def test_ids_of_other_lanes_leave_gaps() -> None:
    """The sequence is shared, so an interval may hold fewer rows than ids."""
    ids = RowIds()
    lane = filled((1, 2), ids=ids)
    ids.take(5)
    lane.add([chunk(2)], ids)
    lane.commit(2)

    assert ids_in(lane, 1, 99) == [1, 2, 8, 9]
    assert ids_in(lane, 3, 8) == [8]


def test_rollback_drops_what_has_no_time() -> None:
    """O5: the rows after the last committed one, and their ids are gone for good."""
    ids = RowIds()
    lane = filled((1, 2), ids=ids)
    lane.add([chunk(2)], ids)
    lane.times.uncommitted_id = lane.last_id
    assert lane.uncommitted

    assert [piece.rows for piece in lane.roll_back()] == [2]
    assert not lane.uncommitted
    assert (lane.last_id, ids.take(1)) == (2, 5)


def test_a_watermark_commits_nothing() -> None:
    """G23: an answer to a request is no commit; an older one than is known is no news."""
    lane = filled((1, 2))
    lane.add([chunk(1)], RowIds(last=2))
    lane.times.uncommitted_id = lane.last_id
    lane.watermark(5)
    lane.watermark(4)

    assert lane.uncommitted
    assert (lane.times.newest_us, lane.times.committed_id) == (5, 2)


def test_freeing_takes_whole_pieces_up_to_a_row() -> None:
    """A piece with one row that must stay stays; what is gone is known."""
    lane = filled((1, 2), (2, 2), (3, 2))
    lane.stored_id = 5

    assert [piece.last_id for piece in lane.free([(0, 5)])] == [2, 4]
    assert lane.freed == [(0, 4)]
    assert [lane.holds(row_id, 6) for row_id in (4, 5, 6)] == [False, True, True]
    assert ids_in(lane, 1, 99) == [5, 6]


def test_what_was_freed_between_other_rows_is_known() -> None:
    """Rows on both sides are still held, each side by itself; when the first are freed too, one interval is left."""
    lane = filled((1, 2), (2, 2), (3, 2), (4, 2))
    lane.stored_id = 8

    assert [piece.last_id for piece in lane.free([(3, 6)])] == [4, 6]
    assert lane.freed == [(0, 0), (3, 6)]
    assert [lane.holds(*span) for span in ((1, 2), (7, 8), (2, 3), (6, 7), (1, 8), (4, 5))] == [True, True, False, False, False, False]
    assert [[piece.last_id for piece in lane.stored_outside(spans)] for spans in ([], [(0, 1)], [(0, 6)], [(7, 7), (8, 8)], [(0, 8)])] == [
        [2, 8],
        [2, 8],
        [8],
        [2, 8],
        [],
    ]
    assert len({lane.holes_before(piece) for piece in lane.pieces}) == 2
    assert [piece.last_id for piece in lane.free([(0, 2)])] == [2]
    assert lane.freed == [(0, 6)]
    assert ids_in(lane, 1, 99) == [7, 8]


def test_a_sealed_piece_keeps_ids_in_runs() -> None:
    """Chunks with gaps between their ids become one piece that still knows every id."""
    ids = RowIds()
    lane = Lane("p")
    for gap in (0, 3, 0):
        ids.take(gap)
        lane.add([chunk(2)], ids)
    lane.commit(1)
    before = ids_in(lane, 1, 99)
    old = list(lane.pieces)

    assert lane.replace(old, chunk(6))
    assert len(lane.pieces) == 1
    assert ids_in(lane, 1, 99) == before == [1, 2, 6, 7, 8, 9]
    assert ids_in(lane, 2, 6) == [2, 6]
    assert list(lane.pieces[0].runs(1, 5)) == [(2, 1), (6, 3)], "chunks whose ids follow each other are one run"
    assert not lane.replace(old, chunk(6)), "the pieces are gone, so nothing is replaced"


def test_a_table_is_stored_up_to_its_newest_lane() -> None:
    """G21: the newest commit time in the table, whoever brought it; hot rows are counted over all lanes."""
    table = MemoryTable("x", version=3)
    table.lanes["p"], table.lanes["q"] = filled((5, 3)), filled((7, 2))
    table.lanes["p"].stored_us, table.lanes["p"].stored_id = 5, 3

    assert (table.stored_us, table.rows_hot()) == (5, 2)
    assert table.lane("p") is table.lanes["p"]
    assert table.lane("r").pieces == []


def test_a_piece_counts_rows_up_to_an_id() -> None:
    """Ids below, between and above the runs."""
    piece = Piece(chunk(5), [3, 10], [0, 2])

    assert [piece.rows_up_to(row_id) for row_id in (2, 3, 4, 7, 10, 12, 99)] == [0, 1, 2, 2, 3, 5, 5]
    assert (piece.first_id, piece.last_id) == (3, 12)
