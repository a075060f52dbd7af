"""A producer's own rows: buffer and archives; and the head with its batches."""

import pyarrow as pa

from righttime.catalyst.archive import Archive
from righttime.catalyst.head import Head
from righttime.changes.position import START, Commit
from righttime.changes.rows import Chunk


def chunk(*values: int) -> Chunk:
    return Chunk(pa.record_batch({"a": pa.array(values, pa.int32())}))


def test_archives_are_taken_oldest_first_up_to_a_time() -> None:
    """A partial take leaves the later commits, in order, and says when the next one begins."""
    archive = Archive()
    for time_us in (10, 20, 30):
        archive.add("x", time_us, [chunk(time_us)])
    archive.add("y", 20, [chunk(1, 2)])

    taken = archive.take("x", up_to_us=20, watermark_us=25)

    assert [time_us for time_us, _ in taken.commits] == [10, 20]
    assert (taken.next_us, taken.watermark_us) == (30, 25)
    assert archive.commits("x") == [(30, 1)]
    assert sorted(archive.tables()) == ["x", "y"]
    assert {flush.table: flush.next_us for flush in archive.take_all()} == {"x": None, "y": None}
    assert not archive
    assert archive.nbytes == 0


def test_an_empty_archive_gives_an_empty_flush() -> None:
    """The empty update: no commits, only the assurance."""
    flush = Archive().take("x", up_to_us=5, watermark_us=5)

    assert (flush.commits, flush.next_us, flush.watermark_us) == ([], None, 5)


def test_bytes_are_counted_per_table_and_time() -> None:
    """What a flush up to a time would bring, for the bound."""
    archive = Archive()
    archive.add("x", 10, [chunk(1), chunk(2)])
    archive.add("x", 20, [chunk(3)])

    assert [archive.bytes_of("x", up_to_us=time_us) for time_us in (9, 10, 20)] == [0, 8, 12]
    assert archive.bytes_of("x") == archive.nbytes == 12
    assert archive.bytes_of("y") == 0


def test_the_head_numbers_commits_per_source_and_states_over_all() -> None:
    """Sources count for themselves; states are one sequence."""
    head = Head(commits_max=10)

    assert head.commit("p", 5, rows=2) == Commit(1, 5)
    assert head.commit("q", 6, rows=1) == Commit(1, 6)
    assert head.commit("p", 9, rows=3) == Commit(2, 9)
    assert {source: history.rows for source, history in head.sources.items()} == {"p": 5, "q": 1}
    assert [head.advance(), head.advance()] == [1, 2]
    cut = head.source("p").cut("p", 8)
    assert (cut.last_inside, cut.first_outside) == (Commit(1, 5), Commit(2, 9))
    assert head.source("r").cut("r", 8).last_inside == START
