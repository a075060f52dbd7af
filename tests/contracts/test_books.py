"""The behaviour of a ledger, on SQLite and on PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from righttime.ledger.book import Book
from righttime.ledger.sqlite import Ledger
from righttime.settings import load_settings
from tests.contracts.book_behaviour import BookBehaviour
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database, open_parts

BOUNDS = {"states_max": 8, "receipts_max": 8, "batches_max": 8}


class TestSqlite(BookBehaviour):
    """All rules hold on a SQLite file."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Iterator[Book]:
        ledger = Ledger.open(tmp_path / "shop", settings=load_settings(**BOUNDS))
        yield ledger
        ledger.close()

    @pytest.fixture
    def reader(self, tmp_path: Path) -> Iterator[Callable[[], Book]]:
        opened: list[Book] = []

        def read() -> Book:
            opened.append(Ledger.open(tmp_path / "shop", settings=load_settings(**BOUNDS), read_only=True))
            return opened[-1]

        yield read
        for book in opened:
            book.close()


class TestPostgres(BookBehaviour):
    """All rules hold in a PostgreSQL database."""

    @pytest.fixture
    def url(self, postgres: TempPostgres) -> Iterator[str]:
        with fresh_database(postgres) as url:
            yield url

    @pytest.fixture
    def ledger(self, url: str, tmp_path: Path) -> Iterator[Book]:
        parts = open_parts(url, tmp_path, **BOUNDS)
        yield parts.ledger
        parts.close()

    @pytest.fixture
    def reader(self, url: str, tmp_path: Path) -> Iterator[Callable[[], Book]]:
        opened = []

        def read() -> Book:
            opened.append(open_parts(url, tmp_path, read_only=True, **BOUNDS))
            return opened[-1].ledger

        yield read
        for parts in opened:
            parts.close()
