"""`righttime receipt list | show | verify`: what answers knew, and whether that still holds.

In: a receipt's id (its first characters are enough), or its JSON that somebody handed over, in a file or as it is.
Out: the receipt; for `verify` which check was made and how it ended.
Promise: `verify` ends with exit code 0 only if the receipt holds.
"""

import errno
import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from righttime.changes.position import Commit
from righttime.cli.console import folded, moment, out, plain, plain_table, seconds, staleness
from righttime.cli.options import AsJson, WarehousePath, reader, standard_input
from righttime.client import Warehouse
from righttime.errors import ReceiptForged, ReceiptUnknown
from righttime.ledger.receipts import Receipt, StreamCommit, Verification

METHODS = {"rerun": "the query was run again at the same state", "ledger": "the cut was compared with the ledger"}

app = typer.Typer(name="receipt", help="List, show and verify the receipts of answers.", no_args_is_help=True)


@app.command(name="list")
def list_receipts(
    warehouse: WarehousePath = ".",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest receipts."""
    with reader(warehouse) as wh:
        receipts = wh.receipts(limit=limit)
    if as_json:
        typer.echo(json.dumps([json.loads(receipt.to_json()) for receipt in receipts], indent=2))
        return
    shown = plain_table("receipt", "issued", "state", "asked", "given", "rows", "query", right=("state", "asked", "given", "rows"))
    for receipt in receipts:
        given = f"[yellow]{staleness(receipt)} late[/]" if receipt.late else staleness(receipt)
        text = textwrap.shorten(receipt.query, 60, placeholder=" …")
        shown.add_row(
            receipt.receipt_id[:12], moment(receipt.issued_us)[:19], f"{receipt.state:,}", seconds(receipt.asked_s), given, f"{receipt.rows:,}", plain(text)
        )
    shown.columns[-1].no_wrap = False  # the one column that may give way
    out().print(shown if receipts else "No receipts yet: every answer of `righttime sql` leaves one.")


@app.command()
def show(
    receipt_id: Annotated[str, typer.Argument(metavar="ID", help="The id, or its first characters.")], warehouse: WarehousePath = ".", as_json: AsJson = False
) -> None:
    """Show one receipt: what was asked, what was given, and from where."""
    with reader(warehouse) as wh:
        receipt = wh.receipt(receipt_id)
    if as_json:
        typer.echo(receipt.to_json())
    else:
        _print_receipt(receipt)


def _print_receipt(receipt: Receipt) -> None:
    console = out()
    facts = plain_table("", "")
    facts.show_header = False
    facts.columns[1].no_wrap = False
    asked = "the exact cut below" if receipt.asked_s is None else f"at most {seconds(receipt.asked_s)} stale"
    for name, value in (
        ("receipt", receipt.receipt_id),
        ("query", receipt.query + (f"  with {', '.join(receipt.parameters)}" if receipt.parameters else "")),
        ("asked", asked),
        ("given", f"{staleness(receipt)} stale{', LATE' if receipt.late else ''}, after waiting {seconds(receipt.waited_s)}"),
        ("cut", moment(receipt.cut_us)),
        ("issued", moment(receipt.issued_us)),
        ("state", f"{receipt.state:,}"),
        ("answer", f"{receipt.rows:,} rows, digest {receipt.digest[:32]}"),
    ):
        facts.add_row(f"[dim]{name}[/]", plain(value))
    console.print(facts)
    sources = plain_table("source", "last commit inside", "first commit outside", title="\nCut")
    for cut in receipt.cut:
        sources.add_row(plain(cut.source), _commit(cut.last_inside), "none known" if cut.first_outside is None else _commit(cut.first_outside))
    console.print(folded(sources))
    if receipt.streams:
        streams = plain_table("stream", "flow", "last commit inside", "first commit outside", title="\nCut of streams")
        for stream in receipt.streams:
            inside, outside = _stream_commit(stream.last_inside, "none"), _stream_commit(stream.first_outside, "none known")
            streams.add_row(plain(stream.stream), plain(stream.flow), inside, outside)
        console.print(folded(streams))
    tables = plain_table(
        "table", "rows from memory", "rows from the warehouse", "version", title="\nTables", right=("rows from memory", "rows from the warehouse", "version")
    )
    for table in receipt.tables:
        tables.add_row(plain(table.name), f"{table.rows_hot:,}", f"{table.rows_stored:,}", str(table.version))
    console.print(folded(tables))


def _stream_commit(commit: StreamCommit | None, none: str) -> str:
    if commit is None:
        return none
    transaction = "" if commit.transaction is None else f" ({plain(commit.transaction)})"
    return f"{commit.number:,}{transaction} at {moment(commit.time_us)}"


def _commit(commit: Commit) -> str:
    return f"{commit.number:,} at {moment(commit.time_us)}" if commit.number else "none"


@app.command()
def verify(
    receipt: Annotated[
        str, typer.Argument(metavar="ID|FILE", help="The id, its first characters, a file with the receipt's JSON, - for standard input, or the JSON itself.")
    ],
    warehouse: WarehousePath = ".",
) -> None:
    """Check that a receipt was issued here, unchanged, and that its answer still holds."""
    with reader(warehouse) as wh:
        verification = _verification(wh, receipt)
    verdict = "[green]verified[/]" if verification.ok else "[bold red]NOT verified[/]"
    out().print(f"{verdict}: {METHODS[verification.method]}: {plain(verification.detail)}", soft_wrap=True)
    if not verification.ok:
        raise typer.Exit(1)


def _verification(wh: Warehouse, receipt: str) -> Verification:
    text = _handed_over(receipt)
    return wh.receipt(receipt).verify() if text is None else wh.verify(text)


def _handed_over(receipt: str) -> str | None:
    """Return the JSON that is meant: the argument itself, a file, or standard input; None for an id."""
    if receipt.lstrip().startswith("{"):
        return receipt
    try:
        if receipt == "-":
            return standard_input()
        if Path(receipt).is_file():
            return Path(receipt).read_text(encoding="utf-8")
    except UnicodeError as error:
        raise ReceiptForged(receipt=receipt, reason="it is not text") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise ReceiptForged(receipt=receipt, reason=f"the file cannot be read ({error.strerror})") from error
    if "/" in receipt or "." in receipt:  # of which no id has any
        raise ReceiptUnknown(receipt=f"{receipt} (there is no file of this name)")
    return None
