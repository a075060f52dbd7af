"""righttime: a right-time data warehouse for PySpark.

In: rows that loaders commit, and queries that say how fresh their answer must be.
Out: answers on one consistent snapshot, each with a receipt.
Promise: ask for the freshness you need, and get the answer with a receipt.
"""

from righttime.catalyst.messages import Published
from righttime.catalyst.policies import Every, Immediate, LoadAware, OnDemand, Policy
from righttime.catalyst.producer import Producer
from righttime.changes.expressions import expr
from righttime.changes.position import Commit, SourceCut
from righttime.client import Warehouse, connect, open
from righttime.errors import (
    AsOfUnavailable,
    CatalystFull,
    CommitError,
    ContractError,
    FlowError,
    FreshnessUnavailable,
    InputError,
    KeyTaken,
    ReceiptError,
    ReceiptForged,
    RightTimeError,
    ServiceError,
    UnknownTable,
    WarehouseError,
    WarehouseLocked,
)
from righttime.ledger.receipts import Receipt, Verification
from righttime.pipeline.flow import Flow
from righttime.query.answer import Answer
from righttime.queues.stream import Stream
from righttime.settings import Settings
from righttime.status import Status

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsOfUnavailable",
    "CatalystFull",
    "Commit",
    "CommitError",
    "ContractError",
    "Every",
    "Flow",
    "FlowError",
    "FreshnessUnavailable",
    "Immediate",
    "InputError",
    "KeyTaken",
    "LoadAware",
    "OnDemand",
    "Policy",
    "Producer",
    "Published",
    "Receipt",
    "ReceiptError",
    "ReceiptForged",
    "RightTimeError",
    "ServiceError",
    "Settings",
    "SourceCut",
    "Status",
    "Stream",
    "UnknownTable",
    "Verification",
    "Warehouse",
    "WarehouseError",
    "WarehouseLocked",
    "connect",
    "expr",
    "open",
]
