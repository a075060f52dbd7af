"""Fixtures of the whole run: one PostgreSQL server and one Spark, each started by the first test that needs it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from righttime.pipeline.spark import SparkOwner
    from tests.support.postgres import TempPostgres

# Machines that run tests are shared and slow at times: a property fails on a wrong answer, not on a slow one.
hypothesis.settings.register_profile("righttime", deadline=None, print_blob=True)
hypothesis.settings.load_profile("righttime")


@pytest.fixture(scope="session")
def postgres() -> Iterator["TempPostgres"]:
    """A PostgreSQL server that nobody else uses; make your own tables and drop them."""
    from tests.support.postgres import TempPostgres

    with TempPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def spark_owner() -> Iterator["SparkOwner"]:
    """The Spark of this run, on two cores; stopped when the run ends."""
    from righttime.pipeline.spark import SparkOwner
    from righttime.settings import load_settings

    owner = SparkOwner(load_settings(spark_master="local[2]"))
    yield owner
    owner.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the servers they ask for, so that `-m "not spark"` leaves out what needs a JVM."""
    for item in items:
        names = getattr(item, "fixturenames", [])
        if "spark_owner" in names:
            item.add_marker(pytest.mark.spark)
        if "postgres" in names:
            item.add_marker(pytest.mark.postgres)
