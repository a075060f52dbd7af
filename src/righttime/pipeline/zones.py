"""Consistency zones: which operators touch the same changing table and therefore have to keep pace, job by job (A11).

In: operators with the tables they read and write, or a flow from which they follow.
Out: zones, in the layout of the thesis (one for each table) or of the paper (one for each loop), and a text for the dry run.
Promise: pure. On Spark these tables are versioned by job, so a zone is a version rule there and costs no barrier.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import AsOf, History, Join, Lookup, Node, StreamNode

Layout = Literal["table", "loop"]
Mode = Literal["same_job", "ordered_task"]


@dataclass(frozen=True)
class Operator:
    """One operator of a running flow: the changing tables it reads and writes, and the branch (chain of operators) it is on.

    `role` says which part of a type 2 dimension it plays, if any: `version` closes or opens versions, `lookup` takes the current one.
    """

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    branch: str = ""
    role: Literal["", "version", "lookup"] = ""


@dataclass(frozen=True)
class Zone:
    """Operators that work on the same job; with `ordered_task` they also take turns, task by task."""

    tables: tuple[str, ...]
    members: tuple[str, ...]
    mode: Mode


def find_zones(operators: Sequence[Operator], *, layout: Layout = "table", versioned: Iterable[str] = ()) -> tuple[Zone, ...]:
    """Return the zones of these operators; `versioned` tables are read at a job's version and need none.

    An operator of two zones is a member of both and waits at both barriers.
    """
    without = set(versioned)
    tables = sorted({table for operator in operators for table in operator.writes} - without)
    zones = [zone for table in tables if (zone := _zone(table, operators)) is not None]
    return tuple(_bundle(zones, operators) if layout == "loop" else zones)


def _zone(table: str, operators: Sequence[Operator]) -> Zone | None:
    members = [operator for operator in operators if table in operator.writes or table in operator.reads]
    if len(members) < 2:
        return None
    versions = any(operator.role == "version" for operator in members if table in operator.writes)
    lookups = any(operator.role == "lookup" for operator in members if table in operator.reads)
    return Zone((table,), tuple(operator.name for operator in members), "ordered_task" if versions and lookups else "same_job")


def _bundle(zones: Sequence[Zone], operators: Sequence[Operator]) -> list[Zone]:
    """Put zones on one barrier whose edges, writer's branch to reader's branch, lie on one cycle."""
    edges = {zone: _edges(zone, operators) for zone in zones}
    reach = _reachable({edge for found in edges.values() for edge in found})
    loops: dict[str, list[Zone]] = {}
    for zone in zones:
        # A branch stands for its whole cycle: the least of all that reach it and that it reaches.
        cycles = [min(b for b in reach[left] if left in reach[b]) for left, right in sorted(edges[zone]) if left in reach.get(right, ())]
        loops.setdefault(cycles[0] if cycles else f"table {zone.tables[0]}", []).append(zone)
    return [_merge(found, operators) for found in loops.values()]


def _edges(zone: Zone, operators: Sequence[Operator]) -> set[tuple[str, str]]:
    (table,) = zone.tables
    writers = {operator.branch for operator in operators if table in operator.writes}
    readers = {operator.branch for operator in operators if table in operator.reads}
    return {(writer, reader) for writer in writers for reader in readers}


def _reachable(edges: set[tuple[str, str]]) -> dict[str, set[str]]:
    branches = {branch for edge in edges for branch in edge}
    reach = {branch: {right for left, right in edges if left == branch} for branch in branches}
    for middle in branches:
        for branch in branches:
            if middle in reach[branch]:
                reach[branch] |= reach[middle]
    return reach


def _merge(zones: Sequence[Zone], operators: Sequence[Operator]) -> Zone:
    members = {member for zone in zones for member in zone.members}
    mode: Mode = "ordered_task" if any(zone.mode == "ordered_task" for zone in zones) else "same_job"
    ordered = tuple(operator.name for operator in operators if operator.name in members)
    return Zone(tuple(table for zone in zones for table in zone.tables), ordered, mode)


def operators_of(flow: Flow, *, constant: Iterable[str] = ()) -> tuple[Operator, ...]:
    """Return the operators that a flow runs as; `constant` names streams that do not change any more, such as a loaded dimension."""
    nodes = flow.nodes()
    ids = {node: name for name, node in nodes.items()}
    branches = _branches(nodes)
    changing = {node for node, streams in _streams(nodes.values()).items() if not streams <= set(constant)}
    found: list[Operator] = []
    for name, node in nodes.items():
        if isinstance(node, Join | Lookup):
            found += _join_operators(name, branches[ids[node.left]], branches[ids[node.right]], right_changes=node.right in changing)
        elif isinstance(node, History):
            found += [Operator(f"{name}: {part}", (), (name,), branches[name], "version") for part in ("close old version", "insert new version")]
        elif isinstance(node, AsOf):
            reads = (ids[node.right],) if node.right in changing else ()
            found.append(Operator(f"{name}: look up version", reads, (), branches[ids[node.left]], "lookup"))
        else:
            found.append(Operator(name, (), (), branches[name]))
    return tuple(found)


def _join_operators(name: str, left: str, right: str, *, right_changes: bool) -> list[Operator]:
    if not right_changes:
        return [Operator(f"{name}: ΔL⋈R", (), (), left)]
    kept_left, kept_right = f"{name}.left", f"{name}.right"
    return [
        Operator(f"{name}: update L", (), (kept_left,), left),
        Operator(f"{name}: ΔL⋈R", (kept_right,), (), left),
        Operator(f"{name}: L⋈ΔR", (kept_left,), (), right),
        Operator(f"{name}: update R", (), (kept_right,), right),
        Operator(f"{name}: ΔL⋈ΔR", (), (), name),
    ]


def _branches(nodes: Mapping[str, Node]) -> dict[str, str]:
    """Return the head of the chain that each step is on: a step with one input, read by nobody else, continues its input's chain."""
    ids = {node: name for name, node in nodes.items()}
    readers: dict[Node, int] = {}
    for node in nodes.values():
        for given in node.inputs:
            readers[given] = readers.get(given, 0) + 1
    heads: dict[str, str] = {}
    for name, node in nodes.items():
        chained = len(node.inputs) == 1 and readers[node.inputs[0]] == 1
        heads[name] = heads[ids[node.inputs[0]]] if chained else name
    return heads


def _streams(order: Iterable[Node]) -> dict[Node, frozenset[str]]:
    """Return the streams behind each step; `order` has inputs first, so that a step that many read is looked at once."""
    found: dict[Node, frozenset[str]] = {}
    for node in order:
        found[node] = frozenset({node.stream}) if isinstance(node, StreamNode) else frozenset().union(*(found[given] for given in node.inputs))
    return found


def describe_in_step(flow: Flow) -> str:
    """Return what the zones of a flow mean to whoever declared it: which streams each step reads in step with which."""
    lines = []
    nodes = flow.nodes()
    streams = _streams(nodes.values())
    for name, node in nodes.items():
        if isinstance(node, Join | Lookup | AsOf):
            left, right = (", ".join(sorted(streams[side])) for side in (node.left, node.right))
            more = ", each row with the version of its own time" if isinstance(node, AsOf) else ""
            lines.append(f"  {name} reads {left} in step with {'itself' if left == right else right}{more}")
    if not lines:
        return "No step reads two inputs, so nothing has to be read in step."
    return "\n".join(["Read in step, so that an answer has these streams up to one and the same moment:", *lines])


def describe_zones(operators: Sequence[Operator], *, costs: Mapping[str, float] | None = None) -> str:
    """Return the zones as lines of text; with `costs`, seconds by operator, also the pace of the slowest against the fastest member of each.

    Who runs operators one by one can tell what each costs. On Spark a drain is one job in which no operator has a time of its own, so the dry run gives none.
    """
    zones = find_zones(operators)
    if not zones:
        return "no consistency zones: no operator shares a changing table."
    lines = [f"{len(zones)} consistency zones, one for each shared table; on Spark each is a version rule (read at the job before), no barrier:"]
    for zone in zones:
        lines.append(f"  {', '.join(zone.tables)} [{zone.mode.replace('_', ' ')}]: {', '.join(zone.members)}{_pace(zone, costs or {})}")
    bundled = [zone for zone in find_zones(operators, layout="loop") if len(zone.tables) > 1]
    lines += [f"  as one barrier for each loop: {', '.join(zone.tables)}" for zone in bundled]
    return "\n".join(lines)


def _pace(zone: Zone, costs: Mapping[str, float]) -> str:
    known = [costs[member] for member in zone.members if costs.get(member, 0) > 0]
    return f" (slowest/fastest {max(known) / min(known):.1f})" if len(known) > 1 else ""
