"""Flows as tables for a terminal: what waits, and where the time of jobs went.

In: `FlowStatus` and `JobReport` values.
Out: tables, and lines about progress.
Promise: only shows; names and reasons of users are never taken for markup.
"""

from collections.abc import Mapping, Sequence

from rich.table import Table

from righttime.cli.console import moment, plain, plain_table, seconds
from righttime.flows.jobs import FlowStatus, JobReport, UnderWay
from righttime.flows.letters import letters_name

STEPS = ("prepare", "wait", "compute", "publish")
JOBS_SHOWN = 5
_MARKS = "░·█▓"  # one for each step
_BAR, _BAR_NARROW = 24, 16


def flows_of(flows: Sequence[FlowStatus], *, elsewhere: bool = False, narrow: bool = False) -> Table:
    """Return the flows: whether they run, what waits, how far they are. Of flows `elsewhere` only files are known."""
    names = ("flow", "", "into", "jobs waiting", "changes waiting", "lag", "up to")
    rows = [_flow(flow, elsewhere=elsewhere) for flow in flows]
    if narrow:
        return _stacked(names, rows)
    shown = plain_table(*names, title="Flows", right=("jobs waiting", "changes waiting", "lag"))
    shown.columns[1].no_wrap, shown.columns[1].overflow = False, "fold"
    for row in rows:
        shown.add_row(*row)
    return shown


def _flow(flow: FlowStatus, *, elsewhere: bool) -> tuple[str, ...]:
    lag = seconds(flow.lag_s) if flow.rows_waiting else "-"
    runs = f"runs; {flow.hindrance}" if flow.hindrance else "runs"
    how = "with its process" if elsewhere else plain(runs) if flow.running else plain(flow.trouble) or "does not run"
    jobs = "-" if elsewhere or not flow.running else f"{flow.jobs_waiting:,}"
    return plain(flow.name), how, plain(", ".join(flow.targets)), jobs, f"{flow.rows_waiting:,}", lag, moment(flow.horizon_us)[:23]


def _stacked(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return the flows one below the other, a line for each value."""
    shown = plain_table("flow", "", title="Flows")
    shown.show_header = False
    for name, how, *values in rows:
        shown.add_row(f"[bold]{name}[/]", how)
        for label, value in zip(names[2:], values, strict=True):
            shown.add_row(f"  [dim]{label}[/]", value)
    return shown


def letters_line(flow: FlowStatus) -> str:
    """Return how many rows a flow could not work on, and where they are; nothing if there are none."""
    rows = "1 row" if flow.dead_letters == 1 else f"{flow.dead_letters:,} rows"
    return f"{flow.name}: {rows} could not be worked on, see {letters_name(flow.name)}" if flow.dead_letters else ""


def jobs_of(flow: FlowStatus, *, last: int = JOBS_SHOWN, narrow: bool = False) -> list[Table]:
    """Return the last jobs of a flow, newest last, with the time that each step took; where it is `narrow`, in a table of its own.

    Rows that did not meet an expectation are shown where there are any.
    """
    title = f"Last jobs of {plain(flow.name)}: " + ", ".join(f"{mark} {step}" for mark, step in zip(_MARKS, STEPS, strict=True))
    shown = flow.jobs[-last:]
    unmet = ("unmet",) if any(job.unmet for job in shown) else ()
    facts, times = ("for", "up to", "changes", "rows", "in one drain", *unmet), (*STEPS, "together", "")
    right = ("job", "changes", "rows", "in one drain", *times[:-1])
    heads = [("job", *facts), ("job", *times)] if narrow else [("job", *facts, *times)]
    tables = [plain_table(*head, title=None if number else title, right=right) for number, head in enumerate(heads)]
    for job in shown:
        spans = [*(job.seconds.get(f"{step}_s", 0.0) for step in STEPS), sum(job.seconds.values())]
        counts = (f"{count:,}" for count in (job.rows_in, job.rows_out, job.jobs_in_drain))
        number, about = f"{job.number:,}", (job.kind, moment(job.horizon_us)[:23], *counts, *(plain(rows_by_stream(job.unmet, none="-")) for _ in unmet))
        took = (*map(seconds, spans), timeline(job, width=_BAR_NARROW if narrow else _BAR))
        for table, row in zip(tables, [(number, *about), (number, *took)] if narrow else [(number, *about, *took)], strict=True):
            table.add_row(*row)
    return tables


def timeline(job: JobReport, *, width: int = _BAR) -> str:
    """Return where the time of a job went, as a bar of `width` characters; a step that took any time has at least one."""
    spans = [max(job.seconds.get(f"{step}_s", 0.0), 0.0) for step in STEPS]
    whole = sum(spans)
    if not whole:
        return ""
    lengths = [max(round(width * span / whole), 1) if span else 0 for span in spans]
    lengths[lengths.index(max(lengths))] += width - sum(lengths)
    return "".join(mark * length for mark, length in zip(_MARKS, lengths, strict=True))


def progress_line(flow: FlowStatus, waited: int, under_way: UnderWay | None = None) -> str:
    """Return how far a flow is with the changes that waited when it began: what can be seen of them, and what is on its way there.

    A drain is done as a whole, and so are targets that are built anew: until then there is no share of it to tell, but what it has and how long it takes.
    """
    if under_way is not None and under_way.parts is not None:
        done, parts = under_way.parts
        share = f", {done:,} of {parts:,} parts, {100 * done // parts} %" if parts > 1 else ""
        return f"{flow.name}: built anew from {under_way.rows:,} changes{share}, computing for {seconds(under_way.seconds)}"
    done = max(waited - flow.rows_waiting, 0)
    if waited and not flow.rows_waiting:
        return f"{flow.name}: {waited:,} changes taken, 100 %, {jobs_text(len(flow.jobs))}; storing the tables"
    share = f", {100 * done // waited} %" if waited else ""
    line = f"{flow.name}: {done:,} of {waited:,} changes taken{share}, {jobs_text(len(flow.jobs))}"
    return line if under_way is None else f"{line}; {under_way.rows:,} being computed for {seconds(under_way.seconds)}"


def jobs_text(count: int) -> str:
    """Return a number of jobs."""
    return f"{count:,} job{'' if count == 1 else 's'}"


def rows_by_stream(rows: Mapping[str, int], *, none: str = "none") -> str:
    """Return changes by stream, or rows by another name, in one line."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(rows.items())) or none
