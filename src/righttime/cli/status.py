"""`righttime status`: what is where, how late it is, and how full each bound is.

In: a warehouse's `Status`.
Out: a few small tables, or JSON.
Promise: looking changes nothing, starts no Spark, and works while another process writes.
"""

import json
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table

from righttime.cli.console import WIDE, folded, moment, out, plain, plain_table, seconds, share, size
from righttime.cli.flows import flows_of, jobs_of, letters_line
from righttime.cli.options import AsJson, WarehousePath, reader
from righttime.ledger.sqlite import Loss
from righttime.status import Status

_NO_TABLES = ("No tables yet.", "No tables yet: `righttime run` makes those of a project's flows, and loads what the streams below have.")


def status(warehouse: WarehousePath = ".", as_json: AsJson = False) -> None:
    """Show tables, rows in memory and stored, lag, bounds used, producers, flows with their last jobs, streams, and losses."""
    with reader(warehouse) as wh:
        found, losses = wh.status(), wh.losses()
    if as_json:
        typer.echo(json.dumps(_as_json(found, losses), indent=2))
    else:
        show(out(), found, losses)


def show(console: Console, found: Status, losses: list[Loss]) -> None:
    """Print a status; in a terminal with little room, long rows are stacked and long names folded."""
    narrow = console.width < WIDE
    parts = _parts(found, losses, narrow=narrow)
    console.print(Group(*(folded(part) if narrow and isinstance(part, Table) else part for part in parts)))


def _as_json(found: Status, losses: list[Loss]) -> dict[str, Any]:
    return asdict(found) | {"losses": [asdict(loss) for loss in losses]}


def _parts(found: Status, losses: list[Loss], *, narrow: bool) -> list[RenderableType]:
    head = f"[bold]{plain(found.path)}[/]  state {found.state:,}"
    if found.writer is not None:
        head += f", open for writing in process {found.writer}: shown is what it has made durable"
    parts: list[RenderableType] = [head, "", tables_of(found) if found.tables else _NO_TABLES[bool(found.streams)], "", _bounds(found)]
    if found.producers:
        parts += ["", producers_of(found)]
    if found.flows:
        parts += ["", flows_of(found.flows, elsewhere=found.writer is not None, narrow=narrow)]
        letters = [plain(line) for line in map(letters_line, found.flows) if line]
        parts += ["", *letters] if letters else []
        for flow in found.flows:
            parts += ["", *jobs_of(flow, narrow=narrow)] if flow.jobs else []
    if found.streams:
        parts += ["", _streams(found)]
    if losses:
        parts += ["", _losses(losses)]
    return parts


def tables_of(found: Status) -> Table:
    """Return the tables: rows in memory and stored, and the age of the oldest row that is not stored."""
    shown = plain_table("table", "rows in memory", "rows stored", "version", "lag", right=("rows in memory", "rows stored", "version", "lag"))
    for table in found.tables:
        shown.add_row(plain(table.name), f"{table.rows_hot:,}", f"{table.rows_stored:,}", str(table.version), seconds(table.lag_s) if table.rows_hot else "-")
    return shown


def producers_of(found: Status) -> Table:
    """Return the open producers, their policies and what they hold back."""
    shown = plain_table("producer", "policy", "commits", "rows held back", "for", right=("commits", "rows held back", "for"))
    for producer in found.producers:
        held = seconds(producer.waiting_s) if producer.rows_unflushed else "-"
        rows = "unknown here" if producer.elsewhere else f"{producer.rows_unflushed:,}"
        shown.add_row(plain(producer.source), plain(producer.policy), f"{producer.last_commit:,}", rows, held)
    return shown


def _bounds(found: Status) -> Table:
    shown = plain_table("bound", "used", "of", "", right=("used", "of", ""))
    for table in found.tables:
        if table.bytes_memory:
            shown.add_row(
                f"memory of {plain(table.name)}", size(table.bytes_memory), size(found.memory_bytes_max), share(table.bytes_memory, found.memory_bytes_max)
            )
        if table.bytes_spilled:
            shown.add_row(
                f"spill of {plain(table.name)}", size(table.bytes_spilled), size(found.spill_bytes_max), share(table.bytes_spilled, found.spill_bytes_max)
            )
    shown.add_row("write-ahead log", size(found.log_bytes), size(found.log_bytes_max), share(found.log_bytes, found.log_bytes_max))
    return shown


def _streams(found: Status) -> Table:
    numbers = ("changes", "dead letters")
    shown = plain_table("stream", "changes", "last commit", "delivered up to", "dead letters", title="Streams", right=numbers)
    for stream in found.streams:
        delivered = "always complete" if stream.watermark_us is None else moment(stream.watermark_us)[:23]
        shown.add_row(plain(stream.name), f"{stream.changes:,}", moment(stream.last_commit_us or 0)[:23], delivered, f"{stream.dead_letters:,}")
    return shown


def _losses(losses: list[Loss]) -> Table:
    shown = plain_table("lost in a crash", "commits", "rows", "found", title="Commits that were only in memory when a process died", right=("rows",))
    for loss in losses:
        shown.add_row(plain(loss.source), f"{loss.first:,} to {loss.last:,}", f"{loss.rows:,}", moment(loss.found_us)[:19])
    return shown
