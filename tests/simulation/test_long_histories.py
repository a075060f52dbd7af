"""AT-X9 over long histories on Delta; those on PostgreSQL are in test_postgres_machine.py."""

import os

import pytest

from tests.simulation.long_histories import Walk
from tests.simulation.test_state_machine import Machine


@pytest.mark.parametrize("seed", range(int(os.environ.get("RIGHTTIME_WALKS", "2"))))
def test_at_x9_a_long_history_gives_the_answers_of_the_list_model(seed: int) -> None:
    """Several crashes and restarts on the same rows: every row once, with its commit time, every cut honoured."""
    Walk(Machine(), seed).run()
