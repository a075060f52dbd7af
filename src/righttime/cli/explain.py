"""`righttime explain`: what a query would wait for, without asking it.

In: a query and a freshness.
Out: the cut it would get, and for each flow behind its tables the changes and jobs that are missing, and about how long they take.
Promise: moves no row and starts no flow and no Spark; the warehouse is left to its writer.
"""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from righttime.cli.console import moment, out, plain, plain_table, seconds
from righttime.cli.flows import rows_by_stream
from righttime.cli.options import AsJson, WarehousePath, reader
from righttime.flows.explain import Explanation


def explain(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT in Spark SQL.")],
    warehouse: WarehousePath = ".",
    freshness: Annotated[str | None, typer.Option(help='How stale the answer may be: "0s" (default), "500ms", "5 min".')] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a query would wait for if it came now: flows, streams, jobs, rows, and an estimate."""
    with reader(warehouse) as wh:
        found = wh.explain(query, freshness=freshness)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "estimate_s": found.estimate_s}, indent=2))
    else:
        _print(found)


def _print(found: Explanation) -> None:
    console = out()
    console.print(f"Tables {plain(', '.join(found.tables)) or 'none'}, at most {seconds(found.freshness_s)} stale: cut at {moment(found.cut_us)}")
    if found.producers:
        console.print(f"Waits for lazy producers: {plain(', '.join(found.producers))}")
    if found.shared:
        console.print("No flow has anything to do: the query shares a state that is there." if not found.producers else "No flow has anything to do.")
        return
    shown = plain_table("flow", "for", "changes", "by stream", "jobs queued", "about", right=("changes", "jobs queued", "about"))
    for need in found.flows:
        about = "unknown" if need.estimate_s is None else seconds(need.estimate_s)
        shown.add_row(plain(need.flow), plain(", ".join(need.tables)), f"{need.rows:,}", plain(rows_by_stream(need.streams)), f"{need.jobs_queued:,}", about)
    console.print(shown)
    for need in found.flows:
        if need.waits_for_source_s:
            console.print(f"{plain(need.flow)} waits for a source that is {seconds(need.waits_for_source_s)} behind the cut.")
        if need.trouble:
            console.print(f"[yellow]{plain(need.flow)}[/]: {plain(need.trouble)}", soft_wrap=True)
    if found.estimate_s is not None:
        console.print(f"Together about {seconds(found.estimate_s)}.")
