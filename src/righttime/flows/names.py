"""Names of a flow's tables and streams: tables that it makes are nobody else's, and what it reads are streams.

In: a flow; the streams, tables and views of the warehouse.
Out: nothing, or an error with the line of the declaration.
Promise: pure, so that a dry run says what a run would say.
"""

from collections.abc import Collection, Mapping

from righttime.changes.schema import TableSchema
from righttime.errors.flows import BadDeclaration, TableNoStream
from righttime.flows.letters import letters_table
from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import StreamNode


def refuse_tables(flow: Flow, *, streams: Collection[str], tables: Mapping[str, TableSchema], keepers: Mapping[str, str]) -> None:
    """Raise if the flow reads a table that is no stream; `keepers` has the flows that keep tables, by table."""
    own = {target.table for target in flow.targets}  # a flow that reads what it writes is refused for that
    for node in flow.nodes().values():
        if not isinstance(node, StreamNode) or node.stream in {*streams, *own} or node.stream not in tables:
            continue
        table = tables[node.stream]
        if table.name in keepers:
            advice = f"flow {keepers[table.name]!r} keeps this table, so declare these steps in that flow, after those that make it"
        elif table.unique and table.in_memory:
            advice = f"make its changes one with Warehouse.tap({table.name!r})"
        else:
            advice = "only a table that was created with keys, unique=True and a memory table can be made one (Warehouse.tap); load a stream instead"
        raise TableNoStream(flow=flow.name, origin=node.origin, what="stream", name=node.stream, known="", advice=advice)


def refuse_taken(flow: Flow, *, streams: Collection[str], tables: Mapping[str, TableSchema], views: Collection[str]) -> None:
    """Raise if a table that the flow would make has the name of something else."""
    kinds = dict.fromkeys(views, "view") | dict.fromkeys(streams, "stream")
    letters = letters_table(flow.name)
    for target in flow.targets:
        if target.table == letters.name:
            raise BadDeclaration(flow=flow.name, origin=target.origin, reason=f"the flow keeps its dead letters under the name {letters.name!r}; use another")
        if target.table in kinds and target.table not in tables:
            reason = f"there is a {kinds[target.table]} {target.table!r} already, and one name is one thing; use another"
            raise BadDeclaration(flow=flow.name, origin=target.origin, reason=reason)
    kind = kinds.get(letters.name) if letters.name not in tables else None if tables[letters.name] == letters else "table"
    if kind is not None:
        reason = f"there is a {kind} {letters.name!r} already, and the flow keeps its dead letters under this name; name the flow differently"
        raise BadDeclaration(flow=flow.name, origin=flow.origin, reason=reason)
