"""Flows as tables for a terminal: what waits, and where the time of jobs went.

In: `FlowStatus` and `JobReport` values.
Out: tables, and lines about progress.
Promise: only shows; names and reasons of users are never taken for markup.
"""

from collections.abc import Mapping, Sequence

from rich.table import Table

from righttime.cli.console import moment, plain, plain_table, seconds
from righttime.flows.jobs import FlowStatus, JobReport

STEPS = ("prepare", "wait", "compute", "publish")
JOBS_SHOWN = 5
_MARKS = "░·█▓"  # one for each step
_BAR = 24


def flows_of(flows: Sequence[FlowStatus], *, elsewhere: bool = False) -> Table:
    """Return the flows: whether they run, what waits, how far they are. Of flows `elsewhere` only files are known."""
    shown = plain_table("flow", "", "into", "jobs waiting", "changes waiting", "lag", "up to", title="Flows", right=("jobs waiting", "changes waiting", "lag"))
    shown.columns[1].no_wrap, shown.columns[1].overflow = False, "fold"
    for flow in flows:
        lag = seconds(flow.lag_s) if flow.rows_waiting else "-"
        how = "with its process" if elsewhere else "runs" if flow.running else plain(flow.trouble) or "does not run"
        jobs = "-" if elsewhere or not flow.running else f"{flow.jobs_waiting:,}"
        shown.add_row(plain(flow.name), how, plain(", ".join(flow.targets)), jobs, f"{flow.rows_waiting:,}", lag, moment(flow.horizon_us)[:23])
    return shown


def jobs_of(flow: FlowStatus, *, last: int = JOBS_SHOWN) -> Table:
    """Return the last jobs of a flow, newest last, with the time that each step took."""
    title = f"Last jobs of {plain(flow.name)}: " + ", ".join(f"{mark} {step}" for mark, step in zip(_MARKS, STEPS, strict=True))
    numbers = ("job", "changes", "rows", "in one drain", *STEPS, "together")
    shown = plain_table("job", "for", "up to", *numbers[1:], "", title=title, right=numbers)
    for job in flow.jobs[-last:]:
        spans = [*(job.seconds.get(f"{step}_s", 0.0) for step in STEPS), sum(job.seconds.values())]
        counts = (f"{count:,}" for count in (job.rows_in, job.rows_out, job.jobs_in_drain))
        shown.add_row(f"{job.number:,}", job.kind, moment(job.horizon_us)[:23], *counts, *map(seconds, spans), timeline(job))
    return shown


def timeline(job: JobReport, *, width: int = _BAR) -> str:
    """Return where the time of a job went, as a bar of `width` characters; a step that took any time has at least one."""
    spans = [max(job.seconds.get(f"{step}_s", 0.0), 0.0) for step in STEPS]
    whole = sum(spans)
    if not whole:
        return ""
    lengths = [max(round(width * span / whole), 1) if span else 0 for span in spans]
    lengths[lengths.index(max(lengths))] += width - sum(lengths)
    return "".join(mark * length for mark, length in zip(_MARKS, lengths, strict=True))


def progress_line(flow: FlowStatus, waited: int) -> str:
    """Return how far a flow is with the changes that waited when it began."""
    done = max(waited - flow.rows_waiting, 0)
    share = f", {100 * done // waited} %" if waited else ""
    return f"{flow.name}: {done:,} of {waited:,} changes{share}, {jobs_text(len(flow.jobs))}"


def jobs_text(count: int) -> str:
    """Return a number of jobs."""
    return f"{count:,} job{'' if count == 1 else 's'}"


def rows_by_stream(rows: Mapping[str, int]) -> str:
    """Return changes by stream in one line."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(rows.items())) or "none"
