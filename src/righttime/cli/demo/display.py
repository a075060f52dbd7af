"""What the demo looks like.

In: a stage, again and again; a result, once.
Out: one live picture in a terminal, a line now and then elsewhere; the closing table.
Promise: it only looks; nothing here waits or decides. It fits 80 columns and 24 lines.
"""

import statistics
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from righttime.cli.console import plain_table, seconds
from righttime.cli.demo.orders import DESK, Desk
from righttime.cli.demo.readers import QUESTIONS, Seen
from righttime.cli.demo.shop import Seller
from righttime.cli.demo.stage import Result, Stage
from righttime.status import Status

SHOWN_PER_READER = 4
WIDE = 100
INTRODUCTION = (
    "A shop sells at a till and on the web, every sale inserted as one row; an order is one row that is updated until it is paid. Four readers query it "
    "with Spark, each for the freshness it needs. Every answer carries a receipt, and every receipt is verified."
)


def picture(stage: Stage, *, elapsed_s: float, total_s: float, phase: str, width: int) -> Group:
    """Return the live picture."""
    status, answers = stage.status(), stage.answers
    parts: list[RenderableType] = [
        Rule("[bold]righttime demo[/]", style="cyan"),
        Text(INTRODUCTION, style="dim"),
        "",
        _sellers([*stage.sellers, stage.desk], status, max(elapsed_s, 0.001)),
        "",
        *_where(status),
        "",
        _readers(answers, width=width),
        _newest(answers),
        "",
        _progress(elapsed_s, total_s, phase),
    ]
    return Group(*parts)


def _sellers(sellers: Sequence[Seller | Desk], status: Status, elapsed_s: float) -> Table:
    shown = plain_table("loader", "policy", "", "commits", "rows", "rows/s", "unmoved", right=("commits", "rows", "rows/s", "unmoved"), gap=1)
    held = {producer.source: producer.rows_unflushed for producer in status.producers}
    for seller in sellers:
        book, habit = seller.book, seller.habit
        rate, unmoved = f"{book.rows / elapsed_s:,.0f}", f"{held.get(habit.channel, 0):,}"
        shown.add_row(
            Text(habit.channel, style="bold"), repr(habit.policy), Text(habit.does, style="dim"), f"{book.commits:,}", f"{book.rows:,}", rate, unmoved
        )
    return shown


def _where(status: Status) -> tuple[Text, Text]:
    """Return a bar of where the rows are, and its legend."""
    held = sum(producer.rows_unflushed for producer in status.producers)
    hot = sum(table.rows_hot for table in status.tables)
    stored = sum(table.rows_stored for table in status.tables)
    bar, width, total = Text(), 76, max(held + hot + stored, 1)
    for count, style in ((held, "yellow"), (hot, "red"), (stored, "blue")):
        bar.append("━" * max(round(width * count / total), 1 if count else 0), style=style)
    legend = Text.assemble(
        (f"rows: {held:,} with the sellers", "yellow"), "   ", (f"{hot:,} in memory", "red"), "   ", (f"{stored:,} in the warehouse", "blue")
    )
    return bar, legend


def _readers(answers: Sequence[Seen], *, width: int) -> Table:
    shown = _answer_table(wide=width >= WIDE)
    for question in QUESTIONS:
        newest = next((seen for seen in reversed(answers) if seen.question is question), None)
        if newest is None:
            shown.add_row(Text(question.reader, style="bold"), f"≤ {question.freshness_s:.0f} s", Text("…", style="dim"))
        else:
            _add_answer(shown, newest)
    return shown


def _newest(answers: Sequence[Seen]) -> Text:
    if not answers:
        return Text()
    newest = answers[-1]
    return Text(f"{newest.question.reader}, {newest.question.about}: {newest.top}", style="italic dim", no_wrap=True, overflow="ellipsis")


def _answer_table(*, wide: bool) -> Table:
    took = ("answer in",) if wide else ()
    numbers = ("asked", "given", "waited", *took, "memory", "warehouse", "state")
    return plain_table("reader", *numbers, "receipt", "verified", right=numbers, gap=2 if wide else 1)


def _add_answer(shown: Table, seen: Seen) -> None:
    receipt, verification = seen.receipt, seen.verification
    verified = Text({"rerun": "✓ re-run", "ledger": "✓ ledger"}[verification.method], style="green") if verification.ok else Text("✗ FAILED", style="bold red")
    took = (seconds(seen.took_s),) if any(column.header == "answer in" for column in shown.columns) else ()
    shown.add_row(
        Text(seen.question.reader, style="bold"),
        f"≤ {seen.question.freshness_s:.0f} s",
        f"{seen.given_s:.3f} s",
        seconds(receipt.waited_s),
        *took,
        f"{seen.rows_hot:,}",
        f"{seen.rows_stored:,}",
        f"{receipt.state:,}",
        receipt.receipt_id[:8],
        verified,
    )


def _progress(elapsed_s: float, total_s: float, phase: str) -> Table:
    shown = Table.grid(padding=(0, 2))
    shown.add_row(ProgressBar(total=max(total_s, 0.1), completed=min(elapsed_s, total_s), width=30), f"[cyan]{elapsed_s:.0f} s[/]", phase)
    return shown


def plain_line(stage: Stage, *, elapsed_s: float, phase: str) -> str:
    """Return one line of progress for logs."""
    answers = stage.answers
    rows = ", ".join(f"{name} {book.rows:,} rows" for name, book in stage.books.items())
    good = sum(seen.verification.ok for seen in answers)
    return f"{elapsed_s:5.1f} s  {phase}: {rows}; answers {len(answers)}, receipts verified {good}"


def closing(result: Result, *, width: int) -> Group:
    """Return the closing table, the rates and the checks."""
    shown = _answer_table(wide=width >= WIDE)
    for question in (*QUESTIONS, result.answers[-1].question):
        mine = [seen for seen in result.answers if seen.question is question]
        for seen in _spread(mine):
            _add_answer(shown, seen)
    checks = [Text.assemble(("✓ ", "green") if check.ok else ("✗ ", "bold red"), check.text) for check in result.checks]
    title = f"[bold]Answers[/] [dim]({len(shown.rows)} of {len(result.answers)}; memory and warehouse are the rows each was read from)[/]"
    return Group(Rule(style="cyan"), title, shown, "", "[bold]Rates[/]", *_rates(result), "", "[bold]Checks[/] [dim](of all answers)[/]", *checks)


def _spread(seen: Sequence[Seen]) -> list[Seen]:
    """Return a few answers from the whole run, the first and the last among them."""
    if len(seen) <= SHOWN_PER_READER:
        return list(seen)
    return [seen[round(step * (len(seen) - 1) / (SHOWN_PER_READER - 1))] for step in range(SHOWN_PER_READER)]


def _rates(result: Result) -> list[str]:
    rows, commits = sum(book.rows for book in result.books.values()), sum(book.commits for book in result.books.values())
    lines = [f"{rows:,} rows inserted one by one in {commits:,} commits and {result.selling_s:.0f} s: {rows / result.selling_s:,.0f} rows/s"]
    lines.append(f"{result.books[DESK].updates:,} rows updated by key, each before it was stored")
    for name, book in result.books.items():
        cost_us = 1e6 * book.busy_s / max(book.rows + book.updates, 1)
        lines.append(
            f"{name} needed {cost_us:,.0f} µs a row{' or update' if book.updates else ''}, commits included, idle {_idle(book.busy_s, result.selling_s)}"
        )
    took, waited = [seen.took_s for seen in result.answers], [seen.receipt.waited_s for seen in result.answers]
    lines.append(f"an answer took {seconds(statistics.median(took))} in the median, {seconds(statistics.median(waited))} of it waiting for freshness")
    return lines


def _idle(busy_s: float, total_s: float) -> str:
    return f"{max(100 - 100 * busy_s / total_s, 0):.0f} %"
