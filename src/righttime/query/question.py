"""Questions: a query as it was asked, with its contract made, before anybody answers it.

In: SQL text of users, and how fresh the answer must be.
Out: the text without its CURRENCY BOUND, and one contract, to whoever answers: Spark, or a database in its own SQL.
Promise: what cannot be understood of a contract is refused before anything of the text is looked at.
"""

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from righttime.catalyst.producer import OwnRows
from righttime.changes.durations import Duration
from righttime.query.answer import Answer
from righttime.query.contract import Contract, make_contract
from righttime.query.statement import split_currency
from righttime.settings import Settings


class SqlAnswers:
    """Takes questions in SQL."""

    _settings: Settings

    def sql(
        self,
        query: str,
        *,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        as_of: datetime | int | None = None,
        parameters: Sequence[Any] = (),
        own: OwnRows | None = None,
    ) -> Answer:
        """Answer one SELECT on one state that is as fresh as asked."""
        text, bound_us = split_currency(query)
        contract = make_contract(freshness=freshness, wait=wait, on_late=on_late, as_of=as_of, bound_us=bound_us, wait_default_s=self._settings.wait_s)
        return self._answer_sql(text, contract, parameters, own)

    @abstractmethod
    def _answer_sql(self, text: str, contract: Contract, parameters: Sequence[Any], own: OwnRows | None) -> Answer:
        """Answer a statement under a contract; with the uncommitted rows of its own producer, if it has any."""
