"""Receipts: what a query asked, waited for and saw, sealed so that nobody can change it afterwards.

In: the facts of one answer, and the warehouse's seal key.
Out: an immutable receipt that travels as JSON and can be verified.
Promise: pure; a receipt with any field changed no longer carries a valid seal.
"""

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

from righttime.changes.position import Commit, SourceCut
from righttime.errors import ReceiptForged, ReceiptUnbound

_FORMAT = 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HotInterval:
    """Rows of one source that an answer took from memory: ids `first_id` to `last_id`, `rows` of them in this table."""

    source: str
    first_id: int
    last_id: int
    rows: int


@dataclass(frozen=True, slots=True)
class TableReceipt:
    """What an answer read of one table: its stored version and all hot versions above it; `rows_hidden` of both were updated or deleted, and are left out."""

    name: str
    version: int
    rows_stored: int
    hot: tuple[HotInterval, ...]
    rows_hot: int
    rows_hidden: int = 0


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """One commit of a stream: its number in the stream, its time, and what its source calls the transaction."""

    number: int
    time_us: int
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class StreamReceipt:
    """Where an answer cuts a stream that a flow made one of its tables of: the last commit inside and the first outside, None if there was none."""

    stream: str
    flow: str
    last_inside: StreamCommit | None
    first_outside: StreamCommit | None


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of checking a receipt: re-run at the same state, or only compared with the ledger. True if it holds."""

    ok: bool
    method: Literal["rerun", "ledger"]
    detail: str

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of one answer. `asked_s` is None where an exact cut was asked for, `given_s` where nobody could tell; `parameters` are texts.

    `uncommitted` names the producer whose open transaction the answer contains too, besides the cut; empty for all others. `streams` has the
    sources behind the tables that flows maintain.
    """

    receipt_id: str
    warehouse_id: str
    state: int
    query: str
    parameters: tuple[str, ...]
    tables: tuple[TableReceipt, ...]
    cut: tuple[SourceCut, ...]
    cut_us: int
    asked_s: float | None
    given_s: float | None
    late: bool
    waited_s: float
    rows: int
    digest: str
    issued_us: int
    uncommitted: str = ""
    streams: tuple[StreamReceipt, ...] = ()
    seal: str = ""
    _verifier: "Callable[[Receipt], Verification] | None" = field(default=None, compare=False, repr=False)

    def sealed(self, key: bytes) -> "Receipt":
        """Return this receipt with the seal of `key` over everything else in it."""
        return replace(self, seal=self._seal_by(key))

    def is_sealed_by(self, key: bytes) -> bool:
        """Say whether the seal is the one `key` gives; takes the same time for every wrong seal."""
        return hmac.compare_digest(self.seal.encode(errors="surrogatepass"), self._seal_by(key).encode())

    def bound(self, verifier: "Callable[[Receipt], Verification]") -> "Receipt":
        """Return this receipt tied to the warehouse that can verify it."""
        return replace(self, _verifier=verifier)

    def verify(self) -> Verification:
        """Check the answer behind this receipt again, with the warehouse it is bound to."""
        if self._verifier is None:
            raise ReceiptUnbound(receipt=self.receipt_id)
        return self._verifier(self)

    def to_json(self) -> str:
        """Return the receipt, seal included, as one line of JSON with sorted names."""
        return _canonical({**self._facts(), "seal": self.seal})

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """Read what `to_json` wrote, in any layout; anything missing, added or of another type raises `ReceiptForged`."""
        try:
            record = json.loads(text, object_pairs_hook=_unique)
            receipt = _read(record)
            # A name that is not ours would not be under the seal, so it may not be there.
            if json.loads(receipt.to_json()) != record:
                raise ValueError("it holds names that no receipt has")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ReceiptForged(receipt=text[:80], reason=f"it is malformed ({error})") from error
        return receipt

    def _seal_by(self, key: bytes) -> str:
        return hmac.new(key, _canonical(self._facts()).encode(), hashlib.sha256).hexdigest()

    def _facts(self) -> dict[str, Any]:
        # Numbers of seconds are always written as floats, so that 5 and 5.0, which are equal, have one seal.
        return {
            "format": _FORMAT,
            "receipt_id": self.receipt_id,
            "warehouse_id": self.warehouse_id,
            "state": self.state,
            "query": self.query,
            "parameters": self.parameters,
            "tables": [asdict(table) for table in self.tables],
            "cut": [asdict(cut) for cut in self.cut],
            "cut_us": self.cut_us,
            "asked_s": None if self.asked_s is None else float(self.asked_s),
            "given_s": None if self.given_s is None else float(self.given_s),
            "late": self.late,
            "waited_s": float(self.waited_s),
            "rows": self.rows,
            "digest": self.digest,
            "issued_us": self.issued_us,
            "uncommitted": self.uncommitted,
            # Only where there are any, so that receipts from before there were flows keep their seals.
            **({"streams": [asdict(stream) for stream in self.streams]} if self.streams else {}),
        }


def _canonical(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _read(record: object) -> Receipt:
    if _take(record, "format", int) != _FORMAT:
        raise ValueError("its format is unknown")
    return Receipt(
        receipt_id=_take(record, "receipt_id", str),
        warehouse_id=_take(record, "warehouse_id", str),
        state=_take(record, "state", int),
        query=_take(record, "query", str),
        parameters=tuple(_checked(value, "parameters", str) for value in _take(record, "parameters", list)),
        tables=tuple(_read_table(table) for table in _take(record, "tables", list)),
        cut=tuple(_read_cut(cut) for cut in _take(record, "cut", list)),
        cut_us=_take(record, "cut_us", int),
        asked_s=None if _take(record, "asked_s", object) is None else _take(record, "asked_s", float),
        given_s=None if _take(record, "given_s", object) is None else _take(record, "given_s", float),
        late=_take(record, "late", bool),
        waited_s=_take(record, "waited_s", float),
        rows=_take(record, "rows", int),
        digest=_take(record, "digest", str),
        issued_us=_take(record, "issued_us", int),
        uncommitted=_take(record, "uncommitted", str),
        streams=tuple(_read_stream(stream) for stream in _take(record, "streams", list)) if "streams" in _take_all(record) else (),
        seal=_take(record, "seal", str),
    )


def _read_table(record: object) -> TableReceipt:
    return TableReceipt(
        name=_take(record, "name", str),
        version=_take(record, "version", int),
        rows_stored=_take(record, "rows_stored", int),
        hot=tuple(
            HotInterval(_take(hot, "source", str), _take(hot, "first_id", int), _take(hot, "last_id", int), _take(hot, "rows", int))
            for hot in _take(record, "hot", list)
        ),
        rows_hot=_take(record, "rows_hot", int),
        rows_hidden=_take(record, "rows_hidden", int),
    )


def _read_stream(record: object) -> StreamReceipt:
    ends = [_take(record, name, object) for name in ("last_inside", "first_outside")]
    inside, outside = (None if end is None else _read_stream_commit(end) for end in ends)
    return StreamReceipt(_take(record, "stream", str), _take(record, "flow", str), inside, outside)


def _read_stream_commit(record: object) -> StreamCommit:
    transaction = _take(record, "transaction", object)
    return StreamCommit(_take(record, "number", int), _take(record, "time_us", int), None if transaction is None else _checked(transaction, "transaction", str))


def _read_cut(record: object) -> SourceCut:
    outside = _take(record, "first_outside", object)
    inside = _read_commit(_take(record, "last_inside", dict))
    return SourceCut(_take(record, "source", str), inside, None if outside is None else _read_commit(outside))


def _read_commit(record: object) -> Commit:
    return Commit(_take(record, "number", int), _take(record, "time_us", int))


def _take(record: object, name: str, kind: type[_T]) -> _T:
    if not isinstance(record, dict):
        raise TypeError("a part of it is not an object")
    return _checked(record[name], name, kind)


def _take_all(record: object) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise TypeError("it is not an object")
    return record


def _checked(value: object, name: str, kind: type[_T]) -> _T:
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} is not of type {kind.__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Two readers may take different ones of two equal names; a seal over one of them would cover neither.
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a name is there twice")
    return record
