"""What the demo looks like.

In: a stage, again and again; a result, once.
Out: one live picture in a terminal, a line now and then elsewhere; the closing table.
Promise: it only looks; nothing here waits or decides.
"""

import statistics
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from righttime.cli.console import plain_table, seconds
from righttime.cli.demo.readers import QUESTIONS, Seen
from righttime.cli.demo.shop import Seller
from righttime.cli.demo.stage import Result, Stage
from righttime.status import Status

SHOWN_PER_READER = 4
INTRODUCTION = """A shop sells at a till and on the web. Every sale is inserted as one row; nothing is loaded before somebody asks.
Three readers query it with Spark, each for the freshness it needs, and every answer carries a receipt, which is verified."""


def picture(stage: Stage, *, elapsed_s: float, seconds_total: float, phase: str) -> Panel:
    """Return the live picture."""
    status, answers = stage.status(), stage.answers
    parts: list[RenderableType] = [
        Text(INTRODUCTION, style="dim"),
        "",
        _sellers(stage.sellers, status, max(elapsed_s, 0.001)),
        "",
        _where(status),
        "",
        _readers(answers),
        "",
        _progress(elapsed_s, seconds_total, phase),
    ]
    return Panel(Group(*parts), title="[bold]righttime demo[/]", border_style="cyan", padding=(0, 1))


def _sellers(sellers: Sequence[Seller], status: Status, elapsed_s: float) -> Table:
    shown = plain_table("seller", "policy", "", "commits", "rows", "rows/s", "held back", right=("commits", "rows", "rows/s", "held back"))
    held = {producer.source: producer.rows_unflushed for producer in status.producers}
    for seller in sellers:
        book, habit = seller.book, seller.habit
        name = Text(habit.channel, style="bold")
        rate = f"{book.rows / elapsed_s:,.0f}"
        shown.add_row(name, repr(habit.policy), Text(habit.does, style="dim"), f"{book.commits:,}", f"{book.rows:,}", rate, f"{held.get(habit.channel, 0):,}")
    return shown


def _where(status: Status) -> Table:
    """Return a bar of where the rows are: at a seller, in memory, in the warehouse."""
    held = sum(producer.rows_unflushed for producer in status.producers)
    hot = sum(table.rows_hot for table in status.tables)
    stored = sum(table.rows_stored for table in status.tables)
    bar = Text()
    width, total = 40, max(held + hot + stored, 1)
    for count, style in ((held, "yellow"), (hot, "red"), (stored, "blue")):
        bar.append("█" * max(round(width * count / total), 1 if count else 0), style=style)
    legend = Text.assemble((f"{held:,} held by sellers", "yellow"), "  ", (f"{hot:,} in memory", "red"), "  ", (f"{stored:,} in the warehouse", "blue"))
    shown = Table.grid(padding=(0, 2))
    shown.add_row("rows", bar, legend)
    return shown


def _readers(answers: Sequence[Seen]) -> Table:
    shown = _answer_table()
    for question in QUESTIONS:
        newest = next((seen for seen in reversed(answers) if seen.question is question), None)
        if newest is None:
            shown.add_row(Text(question.reader, style="bold"), f"≤ {question.freshness_s:.0f} s", Text("waiting for its first answer", style="dim"))
        else:
            _add_answer(shown, newest)
    return shown


def _answer_table() -> Table:
    right = ("asked", "given", "waited", "took", "from memory", "from warehouse", "state")
    return plain_table("reader", "asked", "given", "waited", "took", "from memory", "from warehouse", "state", "receipt", "verified by", right=right)


def _add_answer(shown: Table, seen: Seen) -> None:
    receipt, verification = seen.receipt, seen.verification
    verified = (
        Text({"rerun": "✓ running it again", "ledger": "✓ the ledger"}[verification.method], style="green")
        if verification.ok
        else Text("✗ " + verification.detail, style="bold red")
    )
    shown.add_row(
        Text(seen.question.reader, style="bold"),
        f"≤ {seen.question.freshness_s:.0f} s",
        seconds(receipt.given_s),
        seconds(receipt.waited_s),
        seconds(seen.took_s),
        f"{seen.rows_hot:,}",
        f"{seen.rows_stored:,}",
        f"{receipt.state:,}",
        receipt.receipt_id[:8],
        verified,
    )


def _progress(elapsed_s: float, total_s: float, phase: str) -> Table:
    shown = Table.grid(padding=(0, 2))
    shown.add_row(Spinner("dots", style="cyan"), phase, ProgressBar(total=max(total_s, 0.1), completed=min(elapsed_s, total_s), width=40))
    return shown


def plain_line(stage: Stage, *, elapsed_s: float, phase: str) -> str:
    """Return one line of progress for logs."""
    books, answers = stage.books, stage.answers
    rows = ", ".join(f"{name} {book.rows:,} rows in {book.commits:,} commits" for name, book in books.items())
    good = sum(seen.verification.ok for seen in answers)
    return f"{elapsed_s:5.1f} s  {phase}: {rows}; {len(answers)} answers, {good} receipts verified"


def closing(result: Result) -> Group:
    """Return the closing table, the rates and the checks."""
    shown = _answer_table()
    for question in (*QUESTIONS, result.answers[-1].question):
        mine = [seen for seen in result.answers if seen.question is question]
        for seen in _spread(mine):
            _add_answer(shown, seen)
    checks = [Text.assemble(("✓ ", "green") if check.ok else ("✗ ", "bold red"), check.text) for check in result.checks]
    total = len(result.answers)
    title = f"[bold]Answers[/] [dim]({len(shown.rows)} of {total} shown)[/]"
    return Group(Rule(style="cyan"), title, shown, "", "[bold]Rates[/]", *_rates(result), "", "[bold]Checks[/]", *checks)


def _spread(seen: Sequence[Seen]) -> list[Seen]:
    """Return a few answers from the whole run, the first and the last among them."""
    if len(seen) <= SHOWN_PER_READER:
        return list(seen)
    return [seen[round(step * (len(seen) - 1) / (SHOWN_PER_READER - 1))] for step in range(SHOWN_PER_READER)]


def _rates(result: Result) -> list[str]:
    rows, commits = (sum(getattr(book, what) for book in result.books.values()) for what in ("rows", "commits"))
    lines = [f"{rows:,} rows in {commits:,} commits, inserted one by one in {result.selling_s:.1f} s: {rows / result.selling_s:,.0f} rows/s"]
    lines += [
        f"{name}: {book.rows / max(book.busy_s, 1e-9):,.0f} rows/s while it was busy ({100 * book.busy_s / result.selling_s:.0f} % of the time)"
        for name, book in result.books.items()
    ]
    took = [seen.took_s for seen in result.answers[3:]] or [seen.took_s for seen in result.answers]
    lines.append(
        f"a Spark answer took {seconds(statistics.median(took))} (median); of that, waiting for freshness {seconds(statistics.median(s.receipt.waited_s for s in result.answers))}"
    )
    return lines
