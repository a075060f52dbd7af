"""Values of PostgreSQL that are large: a gigabyte, so not among the properties."""

from pathlib import Path

import pyarrow.compute as pc
import pytest

from righttime.changes.schema import declare_table
from righttime.ledger.postgres_connect import Address, connect
from righttime.settings import load_settings
from righttime.warehouse.postgres_catalog import look_up
from righttime.warehouse.postgres_scan import TableScan
from righttime.warehouse.postgres_tables import create_table
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database, open_parts


@pytest.mark.slow
def test_values_that_are_large_together_are_read_in_smaller_pieces(postgres: TempPostgres, tmp_path: Path) -> None:
    """What is too long for one value of PostgreSQL's is asked for in halves, down to a single row, in the same transaction."""
    table = declare_table("large", "n INT, t STRING")
    with fresh_database(postgres) as url:
        open_parts(url, tmp_path).close()
        address = Address.of(url, load_settings())
        with connect(address) as connection, connection.transaction(force_rollback=True):
            create_table(connection, address, table, now_us=0)
            connection.execute("INSERT INTO public.large SELECT n, repeat('y', 90000000) FROM generate_series(0, 11) n")
            found = look_up(connection, address, ["large"])["large"]
            parts = [part.rows for part in TableScan(connection, address, table, found).rows(["n", "t"])]
    assert len(parts) > 1
    assert [n for part in parts for n in part.column("n").to_pylist()] == list(range(12))
    # As Python strings they would be copied once more.
    assert {length for part in parts for length in pc.binary_length(part.column("t")).to_pylist()} == {90_000_000}
