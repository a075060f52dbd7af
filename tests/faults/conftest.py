"""Fixtures of the crash tests: the process that forks victims, and folders that cost no fsync."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crash_folder import crash_folder
from tests.support.crash_zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A process that has imported everything and forks one victim per request."""
    started = Zygote()
    yield started
    started.close()


@pytest.fixture
def crash_place() -> Iterator[Path]:
    """A folder for one warehouse and its journals."""
    with crash_folder() as folder:
        yield folder
