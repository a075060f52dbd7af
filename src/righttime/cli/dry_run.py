"""`righttime dry-run`: what a project declares, checked, without moving anything.

In: a project; the warehouse it names, if there is one already.
Out: for each flow its steps with columns and types, its targets, zones, and what a run would take from the streams.
Promise: moves no row and makes no table, stream or warehouse; another process may have the warehouse open. Each error names the user's line; exit code 1.
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from rich.console import RenderableType

from righttime.changes.schema import TableSchema
from righttime.cli.console import busy, err, error_line, moment, out, plain, plain_table
from righttime.cli.options import ProjectPath, is_new, project_at, reader
from righttime.cli.steps import detail
from righttime.client import Warehouse
from righttime.errors import BadProject, FlowCycle, NameTaken, NotAWarehouse, RightTimeError
from righttime.flows.catalogue import Catalogue
from righttime.flows.jobs import FlowStatus
from righttime.flows.names import refuse_tables, refuse_taken
from righttime.pipeline.analysis import Analysed, analyse, check_without
from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import Target
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.zones import describe_in_step, describe_zones, operators_of
from righttime.project import Project
from righttime.queues.declared import StreamSchema
from righttime.queues.peek import Peeked, peek
from righttime.settings import load_settings

FlowNames = Annotated[list[str] | None, typer.Option("--flow", "-f", metavar="NAME", help="Only this flow; may be given again.", show_default=False)]


@dataclass(frozen=True)
class Known:
    """What there is already: tables, views, streams with the rows that only their tables have, and flows that have run, with their fingerprints."""

    tables: Mapping[str, TableSchema] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    streams: Mapping[str, Peeked] = field(default_factory=dict)
    flows: Mapping[str, FlowStatus] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    unpulled: Mapping[str, int] = field(default_factory=dict)


def dry_run(project: ProjectPath = Path(), flow: FlowNames = None) -> None:
    """Check the flows of a project and show what they would do; nothing is moved, made or changed."""
    with project_at(project) as loaded:
        problems = list(loaded.problems)
        chosen = chosen_flows(loaded, flow)
        known = look(loaded)
        child, cyclic = cache(_session), _in_cycles(problems)
        anew = []
        for each in chosen:
            try:
                if each.name in cyclic:
                    _check_in_cycle(each, loaded, known, cyclic, child)
                    continue
                analysed = _analysed(each, loaded, known, child())
                _show(each, analysed, known)
                anew += [each.name] if _is_changed(each, analysed, known) else []
            except RightTimeError as error:
                problems.append(error)
        refuse(problems)
        where = [] if project == Path() else [f"-p {shlex.quote(str(project))}"]
        command = " ".join(["righttime run", *where, *(f"--refresh {name}" for name in anew)])
        out().print(f"{len(chosen)} flow{'' if len(chosen) == 1 else 's'} checked; nothing was moved. Next: {plain(command)}", soft_wrap=True)


def chosen_flows(project: Project, names: list[str] | None, *, option: str = "--flow") -> tuple[Flow, ...]:
    """Return the flows that an option names, all if it names none; a name that no flow has is wrong usage, unless a file that may have it cannot be read."""
    unknown = project.unknown(names or [])
    if unknown:
        refuse([problem for problem in project.problems if isinstance(problem, BadProject)])
        known = ", ".join(sorted(flow.name for flow in project.flows)) or "none"
        raise typer.BadParameter(f"there is no flow {unknown[0]!r} in the project; there are: {known}", param_hint=option)
    return project.chosen(names or [])


def _in_cycles(problems: Sequence[RightTimeError]) -> set[str]:
    """Return the flows of cycles: that what they read of each other is no stream follows from it, and is not said again."""
    return {name for problem in problems if isinstance(problem, FlowCycle) for name in problem.context["flows"]}


def _session() -> SparkSession:
    with busy("Starting Spark …"):
        return SparkOwner(load_settings()).child()


def refuse(problems: Sequence[RightTimeError]) -> None:
    """Print what is wrong, each problem once, and end with 1 if anything is."""
    for line in dict.fromkeys(error_line(problem).plain for problem in problems):
        err().print(line, style="red", soft_wrap=True, markup=False)
    if problems:
        raise typer.Exit(1)


def look(project: Project) -> Known:
    """Look at the warehouse of a project; one that is not there yet has nothing."""
    if is_new(project.warehouse):
        return Known()
    try:
        with reader(project.warehouse) as wh:
            tables = {name: wh.schema(name) for name in wh.tables()}
            status = wh.status()
            flows = {each.name: each for each in status.flows}
            fingerprints = _fingerprints(wh)
            unpulled = {each.name: each.unpulled for each in status.streams}
            return Known(tables, wh.views(), peek(wh.path / "streams"), flows, fingerprints, unpulled)
    except NotAWarehouse as error:
        if error.context.get("nothing_there"):
            return Known()
        raise


def _fingerprints(wh: Warehouse) -> dict[str, str]:
    """Return of each flow that of the state which a run goes on with: a refresh that was begun and never shown is none."""
    with wh._engine.reading() as parts:
        sources = parts.catalyst.head
        return {entry.name: entry.generation(sources.source(entry.source).last.number).fingerprint for entry in Catalogue(wh.path / "flows").entries()}


def _analysed(flow: Flow, project: Project, known: Known, child: SparkSession) -> Analysed:
    existing = _existing(known)
    for schema in flow.missing(existing):
        if schema.name in known.tables or schema.name in known.views:
            raise NameTaken(kind="table" if schema.name in known.tables else "view", name=schema.name)
    streams = {**declared_for(flow, project), **existing}
    refuse_taken(flow, streams=streams, tables=known.tables, views=known.views)
    refuse_tables(flow, streams=streams, tables=known.tables, keepers=_keepers(known))
    return analyse(flow, streams, known.tables, child)


def _check_in_cycle(flow: Flow, project: Project, known: Known, cyclic: Collection[str], child: Callable[[], SparkSession]) -> None:
    """Check a flow of a cycle as far as it goes: what the cycle goes through is no stream, and nobody knows its columns unless they are declared."""
    existing = _existing(known)
    flow.missing(existing)
    streams = {**declared_for(flow, project), **existing}
    unknown = {target.table for each in project.flows if each.name in cyclic for target in each.targets} - streams.keys()
    refuse_tables(flow, streams={*streams, *unknown}, tables=known.tables, keepers=_keepers(known))
    if set(flow.streams) - unknown:
        check_without(unknown, flow, streams, known.tables, child())


def _existing(known: Known) -> dict[str, StreamSchema]:
    return {name: stream.schema for name, stream in known.streams.items()}


def _keepers(known: Known) -> dict[str, str]:
    """Return the flows that keep tables, by table."""
    return {table: each.name for each in known.flows.values() for table in each.targets}


def declared_for(flow: Flow, project: Project) -> dict[str, StreamSchema]:
    """Return the streams that a project declares, as this flow sees them: one that another flow declares otherwise, which is wrong, is as this one says."""
    return {**project.streams, **{schema.name: schema for schema in flow.declared}}


def _show(flow: Flow, analysed: Analysed, known: Known) -> None:
    console = out()
    console.print(f"[bold]Flow {plain(flow.name)}[/]  refreshed {_refresh(flow)}, declared at {plain(flow.origin)}", soft_wrap=True)
    steps = plain_table("step", "what", "columns", "line", right=("line",))
    for number in (1, 2):
        steps.columns[number].no_wrap, steps.columns[number].overflow = False, "fold"
    for name, node in analysed.nodes.items():
        columns = ", ".join(f"{column.name} {column.dataType.simpleString().upper()}" for column in analysed.schemas[name])
        steps.add_row(name, plain(detail(node)), plain(columns), str(node.origin.line))
    parts: list[RenderableType] = [steps, *(_target(target, analysed, known) for target in flow.targets), plain(_zones(flow)), _load(flow, analysed, known), ""]
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def _refresh(flow: Flow) -> str:
    return {"on_demand": "on demand", "immediate": "with each commit", "every": f"every {flow.refresh.every_us / 1e6:g} s"}[flow.refresh.kind]


def _target(target: Target, analysed: Analysed, known: Known) -> str:
    table = known.tables.get(target.table) or analysed.new_tables[target.table]
    sums = f", sums of {', '.join(target.additive)}" if target.additive else ""
    new = "" if target.table in known.tables else ", will be made"
    return plain(f"Into {target.table} ({table.ddl()}), one row for each {', '.join(target.keys)}{sums}{new}")


def _zones(flow: Flow) -> str:
    text = describe_zones(operators_of(flow))
    return f"{describe_in_step(flow)}\n{text[:1].upper()}{text[1:]}"


def _is_changed(flow: Flow, analysed: Analysed, known: Known) -> bool:
    """Return whether a flow has run with another declaration, so that its targets must be built anew."""
    return flow.name in known.flows and known.fingerprints.get(flow.name) != analysed.fingerprint


def _load(flow: Flow, analysed: Analysed, known: Known) -> str:
    """Say what a run would take from each stream."""
    before = known.flows.get(flow.name)
    after_us = 0 if before is None else before.horizon_us
    again = _is_changed(flow, analysed, known)
    streamed = {name: known.streams[name].rows_after(0 if again else after_us) if name in known.streams else 0 for name in flow.streams}
    rows = {name: count + known.unpulled.get(name, 0) for name, count in streamed.items()}
    what = ", ".join(f"{name} {count:,}{'' if name in known.streams else ' (will be made)'}" for name, count in rows.items())
    changes = f"{sum(rows.values()):,} changes"
    if before is None:
        return plain(f"A first run would load {changes}: {what}")
    if again:
        return plain(f"Declared differently than when it ran: righttime run --refresh {flow.name} would build its targets anew from {changes}: {what}")
    return plain(f"The next run would load {changes} after {moment(after_us)}: {what}")
