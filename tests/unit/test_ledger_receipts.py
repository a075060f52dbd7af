"""Receipts: sealed, readable in any layout, refused when changed."""

import json
from dataclasses import replace

import pytest

from righttime.changes.position import Commit, SourceCut
from righttime.errors import ReceiptError, ReceiptForged
from righttime.ledger.receipts import HotInterval, Receipt, TableReceipt, Verification

KEY = b"k" * 32
RECEIPT = Receipt(
    receipt_id="r1",
    warehouse_id="w1",
    state=7,
    query="SELECT 1 -- ü",
    parameters=("5", "'x'"),
    tables=(TableReceipt("sale", 3, 100, (HotInterval("till", 11, 20, 10),), 10),),
    cut=(SourceCut("till", Commit(2, 20), Commit(3, 30)), SourceCut("web", Commit(1, 10), None)),
    cut_us=20,
    asked_s=5.0,
    given_s=0.25,
    late=False,
    waited_s=0.5,
    rows=1,
    digest="abc",
    issued_us=99,
).sealed(KEY)


def test_a_sealed_receipt_carries_the_seal_of_its_key_only() -> None:
    """The right key confirms, another does not, and an unsealed receipt is confirmed by none."""
    assert RECEIPT.is_sealed_by(KEY)
    assert not RECEIPT.is_sealed_by(b"other")
    assert not replace(RECEIPT, seal="").is_sealed_by(KEY)
    assert not replace(RECEIPT, seal="ü\ud800").is_sealed_by(KEY)


def test_layout_does_not_matter_but_content_does() -> None:
    """A receipt that another tool has indented, re-ordered or written 5.0 as 5 is the same receipt."""
    record = json.loads(RECEIPT.to_json())
    record["asked_s"] = 5
    text = json.dumps(dict(reversed(record.items())), indent=2, ensure_ascii=False)

    again = Receipt.from_json(text)

    assert again == RECEIPT
    assert again.is_sealed_by(KEY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        RECEIPT.to_json()[:-1],
        RECEIPT.to_json().replace('"rows":1,', '"rows":true,'),
        RECEIPT.to_json().replace('"rows":1,', '"rows":1.5,'),
        RECEIPT.to_json().replace('"rows":1,', ""),
        RECEIPT.to_json().replace('"rows":1,', '"rows":1,"rows":1,'),
        RECEIPT.to_json().replace('"rows":1,', '"rows":1,"bonus":2,'),
        RECEIPT.to_json().replace('"first_id":11,', '"first_id":11,"note":"",'),
        RECEIPT.to_json().replace('"given_s":0.25', '"given_s":NaN'),
        RECEIPT.to_json().replace('"given_s":0.25', '"given_s":1e999'),
        RECEIPT.to_json().replace('"format":1', '"format":2'),
        RECEIPT.to_json().replace('"parameters":["5",', '"parameters":[5,'),
        RECEIPT.to_json().replace('"last_inside":{', '"last_inside":{"x":1,'),
    ],
)
def test_a_malformed_receipt_is_forged(text: str) -> None:
    """Whatever is missing, added, doubled or of another type is refused with the one error."""
    assert text != RECEIPT.to_json()
    with pytest.raises(ReceiptForged):
        Receipt.from_json(text)


def test_a_receipt_verifies_through_the_warehouse_it_is_bound_to() -> None:
    """The binding is used, but is no part of the receipt's identity or text."""
    bound = RECEIPT.bound(lambda receipt: Verification(receipt.is_sealed_by(KEY), "ledger", "checked"))

    assert bound.verify()
    assert bound.verify().method == "ledger"
    assert not replace(bound, rows=2).verify()
    assert bound == RECEIPT
    assert bound.to_json() == RECEIPT.to_json()
    assert "_verifier" not in repr(bound)


def test_an_unbound_receipt_says_why_it_cannot_verify() -> None:
    """A receipt read from JSON knows no warehouse."""
    with pytest.raises(ReceiptError) as caught:
        RECEIPT.verify()
    assert caught.value.context["receipt"] == "r1"
