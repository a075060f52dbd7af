"""`righttime materialize` and `righttime gc`: the two chores that change a warehouse.

In: tables, or none for all.
Out: what was stored, and what was removed.
Promise: no answer changes by either.
"""

from typing import Annotated

import typer

from righttime.cli.console import out, plain, plain_table, size
from righttime.cli.options import WarehousePath, writer


def materialize(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="The tables; all if none is named.", show_default=False)] = None,
    warehouse: WarehousePath = ".",
) -> None:
    """Move committed rows from the log and memory into the tables of the warehouse."""
    with writer(warehouse) as wh:
        before = {table.name: table for table in wh.status().tables}
        state = wh.materialize(*(tables or ()))
        after = wh.status().tables
    # By version: updates store a table without changing how many rows it has. One that is declared meanwhile was not there before.
    stored = [table for table in after if table.name not in before or table.version != before[table.name].version]
    shown = plain_table("table", "rows before", "rows now", "version", right=("rows before", "rows now", "version"))
    for table in stored:
        rows_before = before[table.name].rows_stored if table.name in before else 0
        shown.add_row(plain(table.name), f"{rows_before:,}", f"{table.rows_stored:,}", str(table.version))
    if stored:
        out().print(shown)
    count = f"{len(stored):,} table{'' if len(stored) == 1 else 's'} stored" if stored else "nothing to store"
    out().print(f"State {state}: {count}.")


def gc(warehouse: WarehousePath = ".") -> None:
    """Remove files that no version in use needs, and what crashes left behind."""
    with writer(warehouse) as wh:
        collected = wh.gc()
    shown = plain_table("table", "files", "bytes", "folders", "log entries", right=("files", "bytes", "folders", "log entries"))
    for name, gone in sorted(collected.items()):
        shown.add_row(plain(name), f"{gone.files:,}", size(gone.bytes), f"{gone.folders:,}", f"{gone.log_entries:,}")
    if collected:
        out().print(shown)
    out().print(f"{sum(gone.files for gone in collected.values()):,} files removed, {size(sum(gone.bytes for gone in collected.values()))} freed.")
