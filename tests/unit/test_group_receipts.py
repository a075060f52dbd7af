"""Receipts over several catalysts: parts go into a whole and come out again as they were."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.changes.position import Commit, SourceCut
from righttime.errors import BadMessage, BadSource
from righttime.flight.group_receipts import address_in, addresses_in, as_part, is_part, joined, renamed, same_share, share_of, stripped
from righttime.ledger.receipts import HotInterval, Receipt, TableReceipt

WHOLE_ID = "ab" * 16
sources = st.sampled_from(["till", "web", "till@east", "a@b:1", "*", "ü x"])


def receipt(tables: list[str], names: list[str], *, digest: str = "d", cut_us: int = 100, late: bool = False) -> Receipt:
    hot = tuple(HotInterval(name, 1, 2, 2) for name in names)
    cut = tuple(SourceCut(name, Commit(1, 50), None) for name in names)
    return Receipt(
        receipt_id="0" * 32,
        warehouse_id="w",
        state=3,
        query="SELECT 1",
        parameters=(),
        tables=tuple(TableReceipt(table, 1, 5, hot, 2 * len(names)) for table in tables),
        cut=cut,
        cut_us=cut_us,
        asked_s=0.0,
        given_s=0.0,
        late=late,
        waited_s=0.1,
        rows=1,
        digest=digest,
        issued_us=200,
    )


@given(first=st.sets(sources), second=st.sets(sources))
def test_parts_come_out_of_a_whole_as_they_went_in(first: set[str], second: set[str]) -> None:
    """Each catalyst finds exactly its part under one address, whatever its sources are called, and nobody finds another's."""
    mine = receipt(["m"], ["home"])
    parts = [(address, as_part(receipt([table], sorted(names)), WHOLE_ID)) for address, table, names in (("east:1", "e", first), ("[::1]:8815", "w", second))]
    whole = joined(mine, parts, receipt_id=WHOLE_ID, asked_us=100)
    assert share_of(whole, ["m"], None).cut == mine.cut
    assert set(addresses_in(whole)) == {address for address, part in parts if part.cut}
    for address, part in parts:
        assert same_share(part, whole) == (address if part.cut else "")
        found = stripped(whole, [table.name for table in part.tables], address)
        assert (found.tables, found.cut) == (part.tables, part.cut)
        if part.cut:
            changed = replace(part, cut=(replace(part.cut[0], last_inside=Commit(2, 60)), *part.cut[1:]))
            assert same_share(changed, whole) is None
        assert same_share(replace(part, tables=(replace(part.tables[0], version=9),)), whole) is None


def test_a_whole_is_as_old_and_as_late_as_its_worst_part() -> None:
    """Freshness counts from when the question was asked, to the oldest cut."""
    part = as_part(receipt(["b"], ["till"], cut_us=40, late=True), WHOLE_ID)
    whole = joined(receipt(["a"], ["till"]), [("b:1", part)], receipt_id=WHOLE_ID, asked_us=120)
    assert (whole.cut_us, whole.given_s, whole.late, is_part(whole), is_part(part)) == (40, 80 / 1e6, True, False, True)
    assert joined(receipt(["a"], []), [("b:1", replace(part, given_s=None))], receipt_id=WHOLE_ID, asked_us=120).given_s is None


@pytest.mark.parametrize("address", ["b", "b:x", "", "a b:1", "x@b:1"])
def test_an_address_is_host_and_port(address: str) -> None:
    """Whatever else stood after the @ could not be found again."""
    with pytest.raises(BadMessage):
        renamed(receipt(["b"], ["till"]), address)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    """A table twice, a part of another answer, a whole receipt as a part, a source of the issuer that looks foreign."""
    mine, part = receipt(["a"], ["till"]), as_part(receipt(["b"], ["till"]), WHOLE_ID)
    for wrong in (as_part(receipt(["a"], []), WHOLE_ID), as_part(receipt(["b"], []), "1" * 32), replace(receipt(["b"], []), receipt_id=WHOLE_ID)):
        with pytest.raises(BadMessage):
            joined(mine, [("b:1", wrong)], receipt_id=WHOLE_ID, asked_us=100)
    with pytest.raises(BadSource):
        joined(receipt(["a"], ["till@c:1"]), [("b:1", part)], receipt_id=WHOLE_ID, asked_us=100)


def test_only_host_and_port_after_the_last_at_make_a_source_foreign() -> None:
    """Other names with an @ in them are names."""
    assert [address_in(name) for name in ("till", "till@home", "a@b:c", "x@y:1", "x@y:1@z:2")] == [None, None, None, "y:1", "z:2"]
