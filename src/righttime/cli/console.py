"""How the command line writes: two consoles, numbers as people read them, errors as one line.

In: values.
Out: text for a terminal of any width, or for a pipe.
Promise: nothing that users typed or stored is taken for markup.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from righttime.errors import RightTimeError
from righttime.ledger.receipts import Receipt

WIDE = 140  # columns from which on long rows have room for all their values
_PIPE_WIDTH = 1_000_000

# Messages give the advice that Python code needs; here the way out is an option, a variable or a command.
_ADVICE = (
    ('on_late="answer"', "--on-late answer"),
    ("(wait=)", "(--wait)"),
    ("(token= or RIGHTTIME_TOKEN)", "(RIGHTTIME_TOKEN)"),
    ("open it here with read_only=True", "use a command that only reads: sql, status or receipt"),
    (" in the query, or take Answer.arrow()", " in the query"),
    ("which read_only=True does not need", "which commands that only read (sql, status, receipt) do not need"),
    ("Materialize (commit(materialize=True) or Warehouse.materialize)", "Materialize (`righttime materialize`)"),
    ("Warehouse.losses() names what is lost", "`righttime status` names what is lost"),
    ("Create it with create_table, or correct the name", "Correct the name; tables of flows are made by `righttime run`"),
    ("with refresh=True", "with `righttime run --refresh {flow}`"),
)


def out(*, pipe_width: int = _PIPE_WIDTH) -> Console:
    """Return the console of standard output; what fills the whole width, as lines do, needs one for pipes."""
    return Console(highlight=False, width=_width(sys.stdout.isatty(), pipe_width))


def err() -> Console:
    """Return the console of standard error."""
    return Console(stderr=True, highlight=False, width=_width(sys.stderr.isatty(), _PIPE_WIDTH))


def _width(terminal: bool, pipe_width: int) -> int | None:
    # A pipe has no right edge: whoever reads it gets every value whole, and each row in one line.
    return None if terminal or "COLUMNS" in os.environ else pipe_width


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Tell a terminal what takes seconds, as long as it lasts. In a pipe, standard error has results and errors and nothing else."""
    console = err()
    if console.is_interactive:
        with console.status(what):
            yield
    else:
        yield


def error_line(error: BaseException, *, debug: bool = False) -> Text:
    """Return an error as one line: its code, what happened, the way out."""
    if isinstance(error, RightTimeError):
        return Text.assemble((f"error [{error.code}] ", "bold red"), _with_options(" ".join(str(error).split()), flow=error.context.get("flow", "NAME")))
    more = "" if debug else " This is a bug in righttime; `righttime --debug …` shows where."
    return Text.assemble(("error [bug] ", "bold red"), " ".join(f"{type(error).__name__}: {error}.".split()), more)


def _with_options(message: str, *, flow: object) -> str:
    return reduce(lambda text, advice: text.replace(advice[0], advice[1].replace("{flow}", str(flow))), _ADVICE, message)


def plain_table(*columns: str, title: str | None = None, right: tuple[str, ...] = (), gap: int = 2) -> Table:
    """Return an empty table in the one style of this command line; the columns in `right` hold numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis")
    return table


def folded(table: Table) -> Table:
    """Let the text of a table run over several lines where there is no room for it; numbers stay whole."""
    for column in table.columns:
        if column.justify == "left":
            column.no_wrap, column.overflow = False, "fold"
    return table


def plain(text: object) -> str:
    """Return text that shows exactly as it is."""
    return escape(str(text))


def staleness(receipt: Receipt) -> str:
    """Return how old an answer was; beside a writer in another process nobody can tell."""
    return "unknown" if receipt.given_s is None else seconds(receipt.given_s)


def seconds(value: float | None) -> str:
    """Return a duration for people: 3 ms, 1.25 s, 4.0 min."""
    if value is None:
        return "exact cut"
    if value < 1:
        return f"{round(value * 1000)} ms" if value >= 0.0005 or value == 0 else f"{round(value * 1e6)} µs"
    if value < 120:
        return f"{value:.2f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def size(value: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def share(used: float, bound: float) -> str:
    """Return how full a bound is."""
    return f"{100 * used / bound:.1f} %" if bound else "unused"


def moment(time_us: int) -> str:
    """Return a commit time as a date and time in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).strftime("%Y-%m-%d %H:%M:%S.%f") + " UTC" if time_us else "-"
