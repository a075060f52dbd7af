"""Records: values of the warehouse as JSON can hold them, for headers.

In: commits, contracts, statuses, losses, collections.
Out: the same again on the other side.
Promise: reading what was written gives an equal value; anything else raises `BadMessage`.
"""

from dataclasses import asdict
from typing import Any

from righttime.catalyst.messages import Published
from righttime.changes.position import Commit
from righttime.errors import BadMessage
from righttime.flight.frames import Message, typed
from righttime.flows.explain import Explanation, FlowNeed
from righttime.flows.jobs import FlowStatus, JobReport
from righttime.ledger.receipts import Verification
from righttime.ledger.sqlite import Loss
from righttime.query.contract import Contract
from righttime.status import ProducerStatus, Status, StreamSummary, TableStatus
from righttime.warehouse.store import Collected


def published_record(published: Published) -> list[Any]:
    return [published.commit.number, published.commit.time_us, published.state, published.replayed]


def published_of(record: object) -> Published:
    number, time_us, state, replayed = _numbers(record, 4)
    return Published(Commit(number, time_us), state, bool(replayed))


def contract_record(contract: Contract) -> dict[str, Any]:
    return asdict(contract)


def contract_of(record: object) -> Contract:
    message = Message(typed(record, dict, what="the contract"))
    on_late = message.text("on_late")
    freshness_us, as_of_us = message.number("freshness_us"), message.optional_number("as_of_us")
    if on_late not in ("error", "answer") or freshness_us < 0 or (as_of_us or 0) < 0:
        raise BadMessage(reason="the contract contradicts itself")
    return Contract(freshness_us, message.seconds("wait_s"), "error" if on_late == "error" else "answer", as_of_us, message.header.get("standing") is True)


def status_record(status: Status) -> dict[str, Any]:
    return asdict(status)


def status_of_record(record: object) -> Status:
    content = dict(typed(record, dict, what="the status"))
    try:
        content["tables"] = tuple(TableStatus(**table) for table in content["tables"])
        content["producers"] = tuple(ProducerStatus(**producer) for producer in content["producers"])
        content["flows"] = tuple(_flow_of(flow) for flow in content["flows"])
        content["streams"] = tuple(StreamSummary(**stream) for stream in content["streams"])
        return Status(**content)
    except (KeyError, TypeError) as error:
        raise BadMessage(reason="the status cannot be read") from error


def _flow_of(record: dict[str, Any]) -> FlowStatus:
    jobs = tuple(JobReport(**job) for job in record["jobs"])
    return FlowStatus(**{**record, "streams": tuple(record["streams"]), "targets": tuple(record["targets"]), "jobs": jobs})


def explanation_of(record: object) -> Explanation:
    content = dict(typed(record, dict, what="the explanation"))
    try:
        needs = tuple(FlowNeed(**{**need, "tables": tuple(need["tables"])}) for need in content["flows"])
        return Explanation(**{**content, "flows": needs, "tables": tuple(content["tables"]), "producers": tuple(content["producers"])})
    except (KeyError, TypeError) as error:
        raise BadMessage(reason="the explanation cannot be read") from error


def loss_record(loss: Loss) -> dict[str, Any]:
    return asdict(loss)


def losses_of(records: object) -> list[Loss]:
    try:
        return [Loss(**record) for record in typed(records, list, what="the losses")]
    except TypeError as error:
        raise BadMessage(reason="a loss cannot be read") from error


def collected_of(records: object) -> dict[str, Collected]:
    try:
        return {name: Collected(**record) for name, record in typed(records, dict, what="what was collected").items()}
    except TypeError as error:
        raise BadMessage(reason="what was collected cannot be read") from error


def verification_of(record: object) -> Verification:
    try:
        return Verification(**typed(record, dict, what="the verification"))
    except TypeError as error:
        raise BadMessage(reason="the verification cannot be read") from error


def _numbers(record: object, count: int) -> list[int]:
    listed = typed(record, list, what="a record")
    if len(listed) != count or not all(isinstance(value, int) for value in listed):
        raise BadMessage(reason=f"a record has not {count} numbers")
    return listed
