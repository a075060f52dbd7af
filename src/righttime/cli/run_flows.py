"""`righttime run`: bring the targets of a project's flows up to now, or keep them there.

In: a project.
Out: targets that are stored, and per flow what that took; with `--keep` flows that go on until SIGTERM or Ctrl-C.
Promise: nothing moves if a declaration is wrong or one of the flows would be refused. A flow that fails ends the command with exit code 1 and its reason;
what others published stays. Whoever stops it does not wait for a drain.
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from righttime.cli.console import busy, err, error_line, moment, out, plain, plain_table, seconds
from righttime.cli.dry_run import FlowNames, chosen_flows, refuse
from righttime.cli.flows import jobs_text, letters_line, progress_line
from righttime.cli.options import ProjectPath, project_at
from righttime.cli.serve import SIGNAL_S, Door, TlsCert, TlsKey, TokenFile, door_of, listen, say_where, stop_on_signals
from righttime.client import Warehouse, open
from righttime.errors import RightTimeError
from righttime.flows.jobs import FlowStatus, JobReport
from righttime.flows.letters import letters_name
from righttime.flows.running import RunningFlow
from righttime.pipeline.flow import Flow
from righttime.project import Project

RefreshNames = Annotated[
    list[str] | None, typer.Option("--refresh", metavar="NAME", help="Build the targets of this flow anew; may be given again.", show_default=False)
]
Listening = Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Serve the warehouse meanwhile; needs --keep.", show_default=False)]
_FRAME_S = 0.2
_LINE_S = 5.0


@dataclass(slots=True)
class Tally:
    """What a flow did in this run."""

    jobs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    last: int = 0

    def take(self, reports: Sequence[JobReport]) -> int:
        """Count the jobs that are new; return how many."""
        new = [report for report in reports if report.number > self.last]
        for report in new:
            self.jobs, self.rows_in, self.rows_out, self.last = self.jobs + 1, self.rows_in + report.rows_in, self.rows_out + report.rows_out, report.number
        return len(new)


class Load(threading.Thread):
    """Brings one flow's targets up to now and stores them."""

    def __init__(self, warehouse: Warehouse, flow: Flow, running: RunningFlow) -> None:
        super().__init__(name=f"righttime-load-{flow.name}", daemon=True)
        self.flow = flow
        self.running = running
        self.tally = Tally()
        self.waiting = 0
        self.took_s = 0.0
        self.error: Exception | None = None
        self.ended = False  # not is_alive(): Python calls a thread ended whose join() was interrupted
        self._engine = warehouse._writer("run flows")
        self._begun_s = time.monotonic()

    def run(self) -> None:
        try:
            self._bring_up()
        except Exception as error:
            self.error = error
        self.took_s = time.monotonic() - self._begun_s
        self.ended = True

    def _bring_up(self) -> None:
        self.running.wait()
        self._engine.mover.materialize([*(target.table for target in self.flow.targets), letters_name(self.flow.name)])

    @property
    def failure(self) -> Exception | None:
        """Why the flow did not get there: its own reason before that of those who waited for it."""
        return self.running.failure or self.error


def run_flows(
    context: typer.Context,
    project: ProjectPath = Path(),
    flow: FlowNames = None,
    refresh: RefreshNames = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the flows running until SIGTERM or Ctrl-C.")] = False,
    listening: Listening = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Run the flows of a project: bring their targets up to now and store them."""
    door, debug = _door(listening, keep, token_file, tls_cert, tls_key), bool(context.find_root().params.get("debug"))
    stop = stop_on_signals() if keep else threading.Event()
    with project_at(project) as loaded:
        refuse(loaded.problems)
        chosen, anew = chosen_flows(loaded, flow), _names(loaded, refresh, flow)
        with open(loaded.warehouse) as wh, _giving_up(wh):
            loads = _start(wh, chosen, anew)
            with _naming_unfinished(wh, loads):
                _watch(wh, loads, stop)
            failed = _report(loads, debug=debug)
            _say_letters(wh, loads)
            _say_hindered(wh, loads)
            if stop.is_set():
                _say_unfinished(wh, loads)
            elif keep and not failed:
                failed = _keep(wh, loads, stop, door, debug=debug)
    if failed:
        raise typer.Exit(1)


@contextmanager
def _giving_up(wh: Warehouse) -> Iterator[None]:
    """Cancel what is still computed at the end: a drain may take minutes, and until it is published the next run has it to do anyway."""
    try:
        yield
    finally:
        wh._flows("stop flows").give_up()


@contextmanager
def _naming_unfinished(wh: Warehouse, loads: Sequence[Load]) -> Iterator[None]:
    """Say at once, on Ctrl-C, what is left for the next run."""
    try:
        yield
    except KeyboardInterrupt:
        _say_unfinished(wh, loads)
        raise


def _door(listening: str | None, keep: bool, token_file: Path | None, tls_cert: Path | None, tls_key: Path | None) -> Door | None:
    if listening is None:
        if token_file or tls_cert or tls_key:
            raise typer.BadParameter("tokens and certificates are for --listen", param_hint="--listen")
        return None
    host, _, port = listening.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not keep:
        raise typer.BadParameter("it serves as long as the flows are kept running; give --keep, too", param_hint="--listen")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"{listening!r} is not HOST:PORT", param_hint="--listen")
    return door_of(host, int(port), token_file, tls_cert, tls_key)


def _names(project: Project, refresh: list[str] | None, chosen: list[str] | None) -> set[str]:
    names = {flow.name for flow in chosen_flows(project, refresh, option="--refresh")} if refresh else set()
    left = names - {flow.name for flow in project.chosen(chosen or [])}
    if left:
        raise typer.BadParameter(f"{', '.join(sorted(left))} is left out by --flow", param_hint="--refresh")
    return names


def _start(wh: Warehouse, flows: Sequence[Flow], anew: set[str]) -> list[Load]:
    """Check all flows, then start them: one that is declared wrongly, or would be refused, lets none begin."""
    with busy("Starting Spark and checking the flows …"):
        refuse(list(_problems(wh, flows, anew)))
        loads = [Load(wh, flow, wh.run(flow, refresh=flow.name in anew)) for flow in flows]
    waiting = {status.name: status.rows_waiting for status in wh.flows()}
    for load in loads:
        load.waiting = waiting.get(load.flow.name, 0)
        load.start()
    return loads


def _problems(wh: Warehouse, flows: Sequence[Flow], anew: set[str]) -> Iterator[RightTimeError]:
    for flow in flows:
        try:
            wh.create_streams(flow)
            wh._flows("check a flow").check(flow, refresh=flow.name in anew)
        except RightTimeError as error:
            yield error


def _watch(wh: Warehouse, loads: Sequence[Load], stop: threading.Event) -> None:
    """Show progress until every load has ended or somebody wants to stop."""
    console = err()
    if console.is_interactive:
        with Live(console=console, refresh_per_second=1 / _FRAME_S, transient=True) as screen:
            for lines in _progress(wh, loads, stop):
                screen.update("\n".join(plain(line) for line in lines))
        return
    said_s = time.monotonic()
    for lines in _progress(wh, loads, stop):
        if time.monotonic() - said_s > _LINE_S:
            said_s = time.monotonic()
            console.print("\n".join(lines), markup=False, soft_wrap=True)


def _progress(wh: Warehouse, loads: Sequence[Load], stop: threading.Event) -> Iterator[list[str]]:
    while any(load.is_alive() for load in loads) and not stop.is_set():
        found = _tallied(wh, loads)
        yield [progress_line(found[load.flow.name], load.waiting, load.running._under_way()) for load in loads if load.flow.name in found]
        for load in loads:
            if load.is_alive():
                load.join(timeout=_FRAME_S)
                break
    _tallied(wh, loads)


def _tallied(wh: Warehouse, loads: Sequence[Load]) -> Mapping[str, FlowStatus]:
    for load in loads:
        load.tally.take(load.running.jobs())
    return {status.name: status for status in wh.flows()}


def _report(loads: Sequence[Load], *, debug: bool) -> bool:
    """Print what was done; return whether a flow failed."""
    shown = plain_table("flow", "jobs", "changes", "rows", "seconds", "stored in", right=("jobs", "changes", "rows", "seconds"))
    for load in loads:
        if load.failure is None and not load.is_alive():
            tables = ", ".join(target.table for target in load.flow.targets)
            tally = load.tally
            shown.add_row(plain(load.flow.name), f"{tally.jobs:,}", f"{tally.rows_in:,}", f"{tally.rows_out:,}", f"{load.took_s:.2f}", plain(tables))
    if shown.row_count:
        out().print(shown)
    return _say_failures(loads, debug=debug)


def _say_letters(wh: Warehouse, loads: Sequence[Load]) -> None:
    """Say which flows have rows that no step could work on: they are in no target, and a run succeeds all the same."""
    flows = {status.name: status for status in wh.flows()}
    for load in loads:
        if load.flow.name in flows and (line := letters_line(flows[load.flow.name])):
            err().print(line, markup=False, soft_wrap=True)


def _say_hindered(wh: Warehouse, loads: Sequence[Load]) -> None:
    """Say which changes no run can load for the time being, and what they wait for."""
    hindrances = {status.name: status.hindrance for status in wh.flows()}
    for load in loads:
        if load.failure is None and load.ended and (hindrance := hindrances.get(load.flow.name)):
            err().print(f"{load.flow.name}: {hindrance}.", markup=False, soft_wrap=True)


def _say_failures(loads: Sequence[Load], *, debug: bool) -> bool:
    failures = [load.failure for load in loads if load.failure is not None]
    for failure in failures:
        if debug:
            traceback.print_exception(failure)
        err().print(error_line(failure, debug=debug), soft_wrap=True)
    return bool(failures)


def _say_unfinished(wh: Warehouse, loads: Sequence[Load]) -> None:
    """Say what a stop has left for the next run."""
    waiting = {status.name: status.rows_waiting for status in wh.flows()}
    for load in loads:
        name = load.flow.name
        if not load.ended and load.running._rebuilding:
            err().print(
                f"Stopped before {name} was built anew: its tables stay as they were; `righttime run --refresh {name}` begins again.",
                markup=False,
                soft_wrap=True,
            )
        elif not load.ended:
            left = waiting.get(name, 0)
            rest = ("1 change waits" if left == 1 else f"{left:,} changes wait") + " for the next run" if left else "the next run stores it"
            err().print(f"Stopped before {name} was up to date: {rest}.", markup=False, soft_wrap=True)


def _keep(wh: Warehouse, loads: Sequence[Load], stop: threading.Event, door: Door | None, *, debug: bool) -> bool:
    """Stay until somebody wants to stop, or a flow fails; return whether one failed."""
    service = None if door is None else listen(wh, door)
    try:
        if service is not None and door is not None:
            say_where(service, door)
        else:
            typer.echo("The flows run; Ctrl-C or SIGTERM stops them.")
        _until(stop, lambda: any(load.running.failure is not None for load in loads), each=lambda: _say_jobs(loads))
    finally:
        if service is not None:
            service.stop()
    return _say_failures(loads, debug=debug)


def _until(stop: threading.Event, over: Callable[[], bool], *, each: Callable[[], None]) -> None:
    while not stop.wait(timeout=SIGNAL_S) and not over():
        each()


def _say_jobs(loads: Sequence[Load]) -> None:
    for load in loads:
        before_in, before_out = load.tally.rows_in, load.tally.rows_out
        new = load.tally.take(load.running.jobs())
        if new:
            last = load.running.jobs()[-1]
            rows = f"{load.tally.rows_in - before_in:,} changes, {load.tally.rows_out - before_out:,} rows"
            line = f"{load.flow.name}: {jobs_text(new)}, {rows}, the last took {seconds(sum(last.seconds.values()))}, up to {moment(last.horizon_us)}"
            err().print(line, markup=False, style="dim", soft_wrap=True)
