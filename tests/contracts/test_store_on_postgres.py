"""The behaviour of a store, and what is PostgreSQL's own, on tables of a database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from righttime.changes.clock import SystemClock
from righttime.errors import ForeignCommit
from righttime.query.postgres_parts import PostgresParts
from righttime.settings import load_settings
from righttime.warehouse.postgres import PostgresStore
from righttime.warehouse.store import Store
from tests.contracts.store_behaviour import SALE, StoreBehaviour, add, prepare, skus_at
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database, next_state, open_parts


@pytest.fixture
def parts(postgres: TempPostgres, tmp_path: Path) -> Iterator[PostgresParts]:
    with fresh_database(postgres) as url:
        opened = open_parts(url, tmp_path)
        yield opened
        opened.close()


@pytest.fixture
def store(parts: PostgresParts) -> Store:
    return parts.store


@pytest.fixture
def same_store(parts: PostgresParts, tmp_path: Path) -> Iterator[Store]:
    """Another handle with connections of its own; it sees what is published, as another process does."""
    other = PostgresStore(parts.address, parts.store._writer, folder=tmp_path, settings=load_settings(), clock=SystemClock())
    yield other
    other.close()


class TestPostgres(StoreBehaviour):
    """All rules of a store hold on tables of a database."""

    @pytest.fixture(autouse=True)
    def _parts(self, parts: PostgresParts) -> None:
        self.parts = parts

    def keep(self, store: Store) -> None:
        """Publish what the writer's transaction holds, as the write of a state does."""
        writer = self.parts.store._writer
        assert writer is not None
        state = next_state(self.parts)
        writer.publish(state.number, state.time_us)

    def test_a_removal_on_an_old_version_is_refused_and_nothing_is_lost(self, store: Store) -> None:
        """U5 for removals: whoever built on a version that is not the newest is told; what is undone here is the step, not a version."""
        version = add(store, store.create(SALE), 1, 2)
        self.keep(store)
        removal = prepare(store, version, 1)
        store.undo(SALE, version=version)
        add(store, version, 3)
        self.keep(store)
        with pytest.raises(ForeignCommit):
            store.commit(SALE, [], version=version, batch_id="late", batch_number=7, removed=removal.units)
        assert skus_at(store, store.newest_version(SALE)) == [1, 2, 3]
