"""`righttime materialize` and `righttime gc`: the two chores that change a warehouse.

In: tables, or none for all.
Out: what moved, and what was removed.
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
        before = {table.name: table.rows_stored for table in wh.status().tables}
        state = wh.materialize(*(tables or ()))
        after = {table.name: table for table in wh.status().tables}
    moved = {name: table for name, table in after.items() if table.rows_stored != before[name]}
    shown = plain_table("table", "rows moved", "rows stored", "version", right=("rows moved", "rows stored", "version"))
    for name, table in moved.items():
        shown.add_row(plain(name), f"{table.rows_stored - before[name]:,}", f"{table.rows_stored:,}", str(table.version))
    if moved:
        out().print(shown)
    out().print(f"State {state}: {sum(table.rows_stored - before[name] for name, table in moved.items()):,} rows moved.")


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
