"""Rows come back from PostgreSQL as they went in, for every type."""

import json
import math
from collections.abc import Iterator
from datetime import UTC
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from righttime.changes.schema import TableSchema, declare_table
from righttime.errors import WrongType
from righttime.ledger.postgres_connect import Address, Connection, connect
from righttime.settings import load_settings
from righttime.warehouse.postgres_catalog import look_up
from righttime.warehouse.postgres_encode import copy_blocks, stored_forms
from righttime.warehouse.postgres_json import is_json, jsonb_text
from righttime.warehouse.postgres_scan import TableScan
from righttime.warehouse.postgres_tables import create_table
from righttime.warehouse.postgres_types import arrow_field, check_storable, sql_type
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database, open_parts

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
COLUMNS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "c_bool": ("BOOLEAN", st.booleans()),
    "c_byte": ("TINYINT", st.integers(-(2**7), 2**7 - 1)),
    "c_short": ("SMALLINT", st.integers(-(2**15), 2**15 - 1)),
    "c_int": ("INT", st.integers(-(2**31), 2**31 - 1)),
    "c_long": ("BIGINT", st.integers(-(2**63), 2**63 - 1)),
    "c_float": ("FLOAT", st.floats(width=32)),
    "c_double": ("DOUBLE", st.floats()),
    "c_text": ("STRING", TEXT),
    "c_bounded": ("VARCHAR(20)", TEXT),
    "c_bytes": ("BINARY", st.binary(max_size=20)),
    "c_date": ("DATE", st.dates()),
    "c_time": ("TIMESTAMP", st.datetimes(timezones=st.just(UTC))),
    "c_local": ("TIMESTAMP_NTZ", st.datetimes()),
    "c_money": ("DECIMAL(12, 2)", st.decimals(places=2, min_value=-(10**10) + 1, max_value=10**10 - 1)),
    "c_whole": ("DECIMAL(18, 0)", st.integers(-(10**18) + 1, 10**18 - 1).map(Decimal)),
    "c_tiny": ("DECIMAL(18, 18)", st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-18))),
    "c_small": ("DECIMAL(5, 5)", st.integers(-99999, 99999).map(lambda n: Decimal(n).scaleb(-5))),
    "c_huge": ("DECIMAL(38, 0)", st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n))),
    "c_wide": ("DECIMAL(38, 10)", st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-10"))),
}
for _name in ("c_bool", "c_byte", "c_long", "c_double", "c_text", "c_bytes", "c_date", "c_time", "c_money"):
    _kind, _values = COLUMNS[_name]
    COLUMNS[f"{_name}_array"] = (f"ARRAY<{_kind}>", st.lists(st.none() | _values, max_size=4))
ALL = declare_table("everything", ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items()))
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}), max_size=12)


@pytest.fixture(scope="module")
def place(postgres: TempPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, Address]]:
    with fresh_database(postgres) as url:
        open_parts(url, tmp_path_factory.mktemp("state")).close()
        address = Address.of(url, load_settings())
        with connect(address) as connection:
            yield connection, address


def round_trip(place: tuple[Connection, Address], table: TableSchema, batches: list[pa.RecordBatch]) -> pa.Table:
    connection, address = place
    with connection.transaction(force_rollback=True):
        create_table(connection, address, table, now_us=0)
        with connection.cursor().copy(f'COPY public."{table.name}" FROM STDIN (FORMAT binary)'.encode()) as copying:
            for block in copy_blocks(batches, stored_forms(table.columns)):
                copying.write(block)
        found = look_up(connection, address, [table.name])[table.name]
        parts = list(TableScan(connection, address, table, found).rows(table.columns.names))
    assert all((part.positions[1:] > part.positions[:-1]).all() for part in parts)
    return pa.Table.from_batches([part.rows for part in parts], schema=table.columns)


def bits(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows with floats as their bits, so that NaN equals itself and -0.0 does not equal 0.0."""
    return [tuple("nan" if isinstance(value, float) and math.isnan(value) else str(value) for value in row.values()) for row in rows.to_pylist()]


@pytest.mark.parametrize("name", COLUMNS)
def test_each_type_comes_back_as_it_went_in(place: tuple[Connection, Address], name: str) -> None:
    """With and without nulls, in one batch and in slices of one."""
    table = declare_table("one", f"{name} {COLUMNS[name][0]}")

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(values=st.lists(st.none() | COLUMNS[name][1], max_size=30), start=st.integers(0, 5))
    @example(values=[None, None], start=0)
    @example(values=[], start=0)
    def check(values: list[Any], start: int) -> None:
        batch = pa.RecordBatch.from_pydict({name: values}, schema=table.columns).slice(start)
        assert bits(round_trip(place, table, [batch])) == bits(pa.Table.from_batches([batch]))

    check()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_whole_rows_come_back_as_they_went_in(place: tuple[Connection, Address], rows: list[dict[str, Any]]) -> None:
    """Columns of all widths side by side, nulls anywhere, in order."""
    given_rows = pa.Table.from_pylist(rows, schema=ALL.columns)
    found = round_trip(place, ALL, given_rows.to_batches(max_chunksize=5))
    assert found.schema.equals(ALL.columns)
    assert bits(found) == bits(given_rows)


def test_extremes_come_back_as_they_went_in(place: tuple[Connection, Address]) -> None:
    """The first and the last value that both sides have."""
    table = declare_table("edge", "d DATE, t TIMESTAMP, n TIMESTAMP_NTZ")
    day, time = [-2440588, 2145042905, 0, 10957], [-210866803200000000, 2**63 - 1, 0, 946684800000000]
    rows = pa.table(
        [pa.array(day, pa.int32()).view(pa.date32()), *(pa.array(time).view(table.columns.field(name).type) for name in "tn")], schema=table.columns
    )
    check_storable(table, rows)
    found = round_trip(place, table, rows.to_batches())
    assert found.equals(rows)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("STRING", pa.array(["a", "b\0c"])),
        ("DATE", pa.array([2145042906], pa.int32())),
        ("DATE", pa.array([-2440589], pa.int32())),
        ("TIMESTAMP", pa.array([-210866803200000001])),
        ("TIMESTAMP_NTZ", pa.array([None, -(2**63)])),
    ],
    ids=str,
)
def test_what_postgresql_cannot_hold_is_refused_before_it_is_sent(kind: str, value: pa.Array) -> None:
    """Values without a place there are named, instead of a failure when rows are stored."""
    table = declare_table("odd", f"c {kind}")
    column = value.view(table.columns.field("c").type) if kind != "STRING" else value
    with pytest.raises(WrongType, match="PostgreSQL"):
        check_storable(table, pa.table([column], schema=table.columns))


def test_every_type_is_found_again_in_the_catalog() -> None:
    """A table that was created can be adopted: only BYTE, which PostgreSQL does not have, comes back wider."""
    for field in ALL.columns:
        found = arrow_field(field.name, sql_type(field), nullable=True)
        assert found.equals(field, check_metadata=True) or "byte" in field.name


def test_foreign_values_that_are_no_times_are_an_error_not_an_answer(place: tuple[Connection, Address]) -> None:
    """PostgreSQL's infinity has no counterpart."""
    from righttime.errors import WarehouseDamaged

    table = declare_table("odd", "t TIMESTAMP, d DATE, n DECIMAL(5, 2), b TINYINT")
    connection, address = place
    for row in ("'infinity', NULL, NULL, NULL", "NULL, '-infinity', NULL, NULL", "NULL, NULL, 'NaN', NULL", "NULL, NULL, NULL, 300"):
        with connection.transaction(force_rollback=True):
            create_table(connection, address, table, now_us=0)
            connection.execute(f"INSERT INTO public.odd VALUES ({row})".encode())
            found = look_up(connection, address, ["odd"])["odd"]
            with pytest.raises(WarehouseDamaged, match="somebody else wrote it"):
                list(TableScan(connection, address, table, found).rows(["t", "d", "n", "b"]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
JSON_TEXTS = st.builds(
    lambda value, separators, ascii, indent: json.dumps(value, separators=separators, ensure_ascii=ascii, indent=indent),
    JSON,
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
    st.sampled_from([None, 1]),
)
ODD_NUMBERS = ["NaN", "-Infinity", "01", "1.", ".5", "-0", "-0.0", "0e5", "1.50e1", "1E-3", "12e0", "1e-16001"]
ODD_STRINGS = ['"\\u0000"', '"\\ud83d"', '"\\ud83d\\ude00"', '"\t"', '"\x7f"', '"\\/"', '"\\u00e4"']
ODD_OBJECTS = ['{"a":1,"a":2}', '{"b": 1, "a": 2}', '{"bb": 1, "a": 2}', "[1,]", "{1: 2}", "[" * 90 + "]" * 90]
ODD_TEXTS = st.sampled_from(["", " ", "nul", "1 2", "\ufeff1", *ODD_NUMBERS, *ODD_STRINGS, *ODD_OBJECTS])
OTHERS = declare_table("others", pa.schema([arrow_field(f"c_{kind}", kind, nullable=True) for kind in ("uuid", "json", "jsonb", "numeric")]))
OTHER_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "c_uuid": st.none() | st.uuids().map(str),
            "c_json": st.none() | JSON_TEXTS,
            "c_jsonb": st.none() | JSON_TEXTS.map(jsonb_text),
            "c_numeric": st.none() | st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-18")) | st.integers(-9, 9).map(Decimal),
        }
    ),
    max_size=8,
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(rows=OTHER_ROWS)
def test_columns_that_are_read_as_another_type_come_back_as_they_went_in(place: tuple[Connection, Address], rows: list[dict[str, Any]]) -> None:
    """Texts to the character, numbers to the digit."""
    given_rows = pa.Table.from_pylist(rows, schema=OTHERS.columns)
    check_storable(OTHERS, given_rows)
    assert sorted(bits(round_trip(place, OTHERS, given_rows.to_batches()))) == sorted(bits(given_rows))


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(text=JSON_TEXTS | ODD_TEXTS)
def test_json_is_what_postgresql_takes_for_it(place: tuple[Connection, Address], text: str) -> None:
    """What is accepted is accepted there, and jsonb is written as it writes it; what is refused is refused there, or is a number without end."""
    connection, _ = place
    written: dict[str, str | None] = {}
    for kind in ("json", "jsonb"):
        try:
            with connection.transaction():
                ((written[kind],),) = connection.execute(f"SELECT %s::{kind}::text".encode(), (text,)).fetchall()
        except psycopg.errors.DataError:
            written[kind] = None
    assert (text if is_json(text) else None) == written["json"]
    assert jsonb_text(text) == written["jsonb"] or (jsonb_text(text) is None and "e-16001" in text)
