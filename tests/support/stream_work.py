"""A source with two tables that feeds two streams, and the judge of what it leaves behind.

In: a folder with the number of a seed; the same transactions for the same seed, in any process.
Out: streams as a kill left them; a journal of what was acknowledged.
Promise: the judge knows every row and dead letter that must be there from the seed alone.
"""

import os
from pathlib import Path
from random import Random

from righttime.queues.streams import Streams
from righttime.settings import load_settings
from tests.support.stream_model import Row, StreamModel, rows_of

TRANSACTIONS = 40
ALWAYS = 10**15
COLUMNS = {"line": ("id", "a", "b"), "purchase": ("id",)}
_TYPES = ("insert", "insert", "update_postimage", "delete")


def streams_of(folder: Path) -> Streams:
    """Open the two streams with bounds so small that tails are sealed and the log is turned all the time."""
    settings = load_settings(stream_segment_rows=25, stream_log_bytes=7_000, stream_cache_bytes=2_000)
    streams = Streams(folder / "streams", settings=settings, issue=lambda names, given: given or 0, now_us=lambda: 2**60)
    streams.create("line", "id INT, a INT, b STRING", keys=["id"], times="source", on_bad="dead_letter", if_not_exists=True)
    streams.create("purchase", "id INT", times="source", if_not_exists=True)
    return streams


def transaction(seed: int, number: int) -> dict[str, list[Row]]:
    """Return the changes of one transaction: some to a few keys, not all of them possible, and one purchase."""
    dice = Random(f"{seed}/{number}")
    lines = [
        {"id": dice.randrange(12), "a": dice.choice([None, 1, 2]), "b": "x" * dice.randrange(20), "_change_type": dice.choice(_TYPES)}
        for _ in range(dice.randrange(8))
    ]
    return {"line": [{"id": one["id"], "_change_type": "delete"} if one["_change_type"] == "delete" else one for one in lines], "purchase": [{"id": number}]}


def feed_streams(folder: Path) -> None:
    """Feed the transactions that are not there yet, and note each one that was acknowledged."""
    seed = int((folder / "seed").read_text())
    streams = streams_of(folder)
    journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(streams.table("purchase", 0, ALWAYS).num_rows, TRANSACTIONS):
        streams.append(transaction(seed, number), transaction=f"T{number}", time_us=10 * (number + 1))
        os.write(journal, b".")
    streams.close()


def judge_streams(folder: Path, *, acknowledged_before: int) -> int:
    """Check that the streams are those of a prefix of the transactions that has every acknowledged one; return how many."""
    seed = int((folder / "seed").read_text())
    journal = folder / "journal"
    acknowledged = acknowledged_before + (len(journal.read_bytes()) if journal.exists() else 0)
    journal.unlink(missing_ok=True)
    streams = streams_of(folder)
    there = streams.rows_between("purchase", 0, ALWAYS)
    assert acknowledged <= there <= acknowledged + 1, f"{acknowledged} acknowledged, {there} there"
    line, purchase = StreamModel(COLUMNS["line"], ("id",), dead_letters=True), StreamModel(COLUMNS["purchase"], ())
    for number in range(there):
        changes = transaction(seed, number)
        line.append(changes["line"], 10 * (number + 1), f"T{number}")
        purchase.append(changes["purchase"], 10 * (number + 1), f"T{number}")
    for name, model in (("line", line), ("purchase", purchase)):
        assert sorted(map(repr, map(_sorted, rows_of(streams.table(name, 0, ALWAYS))))) == sorted(map(repr, map(_sorted, model.stored)))
    assert streams.dead_letters("line").column("code").to_pylist() == line.letters
    streams.close()
    return there


def _sorted(row: Row) -> list[tuple[str, object]]:
    return sorted(row.items())
