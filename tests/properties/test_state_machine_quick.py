"""A short run of the simulation for `make check`; the full one is in tests/simulation."""

from tests.simulation.test_state_machine import run


def test_some_histories_give_the_answers_of_the_list_model() -> None:
    """AT-X9 on few examples: enough to see a broken rule at once."""
    run(20)
