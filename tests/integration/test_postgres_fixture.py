"""The PostgreSQL server of the test run."""

import psycopg

from tests.support.postgres import TempPostgres


def test_a_fresh_server_keeps_rows_and_speaks_tcp_too(postgres: TempPostgres) -> None:
    """What is committed over the socket is read over TCP."""
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("CREATE TABLE probe AS SELECT 7 AS n")
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute("SELECT n, current_setting('fsync') FROM probe").fetchone()
        connection.execute("DROP TABLE probe")

    assert row == (7, "on")
