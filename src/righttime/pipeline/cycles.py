"""Cycles over flows: a table whose changes are a stream must not depend on itself.

In: flows, and which streams are the changes of which tables.
Out: nothing, or `FlowCycle`.
Promise: pure; the error names the whole way round and the line that closes it.
"""

from collections.abc import Mapping, Sequence

from righttime.errors.flows import FlowCycle
from righttime.pipeline.flow import Flow


def check_cycles(flows: Sequence[Flow], *, tables_by_stream: Mapping[str, str] | None = None) -> None:
    """Raise `FlowCycle` if flows, alone or together, read what they write; a stream not in `tables_by_stream` is the changes of a table of its name."""
    tables = tables_by_stream or {}
    reads = {flow: {tables.get(name, name) for name in flow.streams} for flow in flows}
    for start in flows:
        _walk(start, reads)


def _walk(start: Flow, reads: Mapping[Flow, set[str]]) -> None:
    """Follow every way from this flow along targets and their readers; coming back is a cycle."""
    seen: set[Flow] = set()
    ways: list[tuple[Flow, tuple[str, ...]]] = [(start, (start.name,))]
    while ways:
        flow, way = ways.pop()
        for target in flow.targets:
            if target.table in reads[start]:
                raise FlowCycle(flow=start.name, origin=target.origin, path=" → ".join((*way, target.table, start.name)), flows=way[::2])
            further = [other for other in reads if target.table in reads[other] and other not in seen]
            seen.update(further)
            ways += [(other, (*way, target.table, other.name)) for other in further]
