"""`righttime sql`: one query, its answer on standard output, the essence of its receipt on standard error.

In: SQL text, or `-` for standard input, and the contract.
Out: a table, JSON or CSV.
Promise: standard output holds the answer and nothing else, so it can be piped.
"""

import csv
import json
import math
import sys
from datetime import date, datetime, time
from enum import StrEnum
from typing import Annotated, Any

import typer

from righttime.cli.console import busy, err, out, plain, plain_table, seconds, staleness
from righttime.cli.options import WarehousePath, checked_text, reader, standard_input
from righttime.errors import BadFreshness, SqlRefused
from righttime.ledger.receipts import Receipt
from righttime.query.answer import Answer, python_columns

TABLE_ROWS_MAX = 500


class Format(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class OnLate(StrEnum):
    """What happens when the asked freshness cannot be had in time."""

    ERROR = "error"
    ANSWER = "answer"


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT in Spark SQL; - reads it from standard input.")],
    warehouse: WarehousePath = ".",
    freshness: Annotated[str | None, typer.Option(help='How stale the answer may be: "0s" (default), "500ms", "5 min".')] = None,
    wait: Annotated[str | None, typer.Option(help="How long to wait for that freshness.")] = None,
    on_late: Annotated[OnLate, typer.Option(help="Then fail, or answer with what is there.")] = OnLate.ERROR,
    as_of: Annotated[str | None, typer.Option(help="Answer at this cut: an ISO time (UTC if without zone) or microseconds since 1970.")] = None,
    format: Annotated[Format, typer.Option(help="How to print the answer.")] = Format.TABLE,
    no_receipt: Annotated[bool, typer.Option("--no-receipt", help="Do not show the receipt.")] = False,
) -> None:
    """Answer a query as fresh as you ask. While another process writes, only what it has made durable can be seen: use --on-late answer."""
    text = _text(query)
    cut = None if as_of is None else _instant(as_of)
    with reader(warehouse) as wh, busy("Waiting for the answer; the first query of a process starts Spark …"):
        answer = wh.sql(text, freshness=freshness, wait=wait, on_late=on_late.value, as_of=cut)
    {Format.TABLE: _print_table, Format.JSON: _print_json, Format.CSV: _print_csv}[format](answer)
    if not no_receipt:
        err().print(receipt_line(answer.receipt), style="dim", soft_wrap=True)


def _text(query: str) -> str:
    try:
        return standard_input() if query == "-" else checked_text(query)
    except UnicodeError as error:
        raise SqlRefused(reason="it is no text in UTF-8", way_out="Write or save the query as UTF-8.") from error


def receipt_line(receipt: Receipt) -> str:
    """Return the essence of a receipt in one line."""
    hot, stored = sum(table.rows_hot for table in receipt.tables), sum(table.rows_stored for table in receipt.tables)
    asked = "" if receipt.asked_s is None else f" of {seconds(receipt.asked_s)} asked"
    late = " LATE," if receipt.late else ""
    rows = f"{receipt.rows:,} row{'' if receipt.rows == 1 else 's'}"
    return (
        f"{rows} at state {receipt.state},{late} staleness {staleness(receipt)}{asked}, waited {seconds(receipt.waited_s)}, "
        f"read {hot:,} rows from memory and {stored:,} from the warehouse, receipt {receipt.receipt_id}"
    )


def _instant(text: str) -> datetime | int:
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise BadFreshness(value=text, what="cut to ask for", reason=str(error)) from error


def _print_table(answer: Answer) -> None:
    shown = answer.arrow().slice(0, TABLE_ROWS_MAX)
    numeric = tuple(field.name for field in shown.schema if str(field.type).startswith(("int", "float", "double", "decimal")))
    table = plain_table(*(plain(name) for name in answer.columns), right=tuple(plain(name) for name in numeric))
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for row in zip(*python_columns(shown), strict=True):
        table.add_row(*("[dim]null[/]" if value is None else plain(cell_text(value)) for value in row))
    out().print(table)
    if len(answer) > shown.num_rows:
        err().print(f"… and {len(answer) - shown.num_rows:,} more rows; --format csv or json prints all.", style="dim")


def _print_json(answer: Answer) -> None:
    names = unique_names(answer.columns)
    rows = [dict(zip(names, map(json_value, row), strict=True)) for row in answer.rows()]
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def _print_csv(answer: Answer) -> None:
    rows = answer.rows()  # before the first line, since it may fail
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(answer.columns)
    lines.writerows(["" if value is None else cell_text(value) for value in row] for row in rows)
    sys.stdout.flush()  # a reader that is gone is found here, as with the other formats, and not when Python ends


def unique_names(columns: tuple[str, ...]) -> list[str]:
    """Return column names for objects: Spark allows a name twice, an object does not."""
    names: list[str] = []
    for column in columns:
        count, name = 1, column
        while name in names:
            count += 1
            name = f"{column}_{count}"
        names.append(name)
    return names


def cell_text(value: Any) -> str:
    """Return one value as text; nested ones as JSON."""
    plain_value = json_value(value)
    if isinstance(plain_value, bool | dict | list):
        return json.dumps(plain_value, ensure_ascii=False)
    return str(plain_value)


def json_value(value: Any) -> Any:
    """Return one value as JSON can hold it without loss: decimals, times and numbers that are none as text, bytes in hexadecimal."""
    if isinstance(value, dict):
        return {str(name): json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
