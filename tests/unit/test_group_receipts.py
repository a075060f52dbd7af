"""Receipts over several catalysts: parts go into a whole and come out again as they were."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import righttime as rt
from righttime.changes.position import Commit, SourceCut
from righttime.errors import BadMessage, BadSource
from righttime.flight.access import READ, Grant
from righttime.flight.desk import Desk
from righttime.flight.frames import read_frame, write_frame
from righttime.flight.group_receipts import address_in, addresses_in, as_part, is_part, joined, renamed, same_share, share_of, stripped
from righttime.ledger.receipts import HotInterval, Receipt, StreamCommit, StreamReceipt, TableReceipt

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


@given(streams=st.sets(st.sampled_from(["orders", "web.orders"])), uncommitted=st.sampled_from(["", "till", "till@east"]), cut=st.booleans())
def test_streams_and_uncommitted_rows_of_a_part_stand_in_the_whole(streams: set[str], uncommitted: str, cut: bool) -> None:
    """Under the address of their catalyst, and they come out again as they went in: whoever leaves them out or changes them is found out."""
    behind = tuple(StreamReceipt(stream, "sales", StreamCommit(1, 40), None) for stream in sorted(streams))
    mine = replace(receipt(["m"], ["home"]), streams=(StreamReceipt("orders", "sales", None, None),))
    part = as_part(replace(receipt(["e"], ["till"] if cut else []), streams=behind, uncommitted=uncommitted), WHOLE_ID)
    whole = joined(mine, [("east:1", part)], receipt_id=WHOLE_ID, asked_us=100)
    assert [one.stream for one in whole.streams] == ["orders", *(f"{stream}@east:1" for stream in sorted(streams))]
    assert whole.uncommitted == (f"{uncommitted}@east:1" if uncommitted else "")
    home = share_of(whole, ["m"], None)
    assert (home.streams, home.uncommitted) == (mine.streams, "")
    assert same_share(part, whole) == ("east:1" if cut or streams or uncommitted else "")
    found = stripped(whole, ["e"], "east:1")
    assert (found.cut, found.streams, found.uncommitted) == (part.cut, part.streams, part.uncommitted)
    assert same_share(replace(part, uncommitted="another"), whole) is None
    assert same_share(replace(part, streams=(StreamReceipt("others", "sales", None, None),)), whole) is None


def test_uncommitted_rows_of_the_issuer_are_in_its_share_alone() -> None:
    """An open transaction is at one catalyst; two of them in one answer are no answer of ours."""
    mine, part = replace(receipt(["m"], ["till"]), uncommitted="till"), as_part(receipt(["e"], ["till"]), WHOLE_ID)
    whole = joined(mine, [("east:1", part)], receipt_id=WHOLE_ID, asked_us=100)
    assert (whole.uncommitted, share_of(whole, ["m"], None).uncommitted, stripped(whole, ["e"], "east:1").uncommitted) == ("till", "till", "")
    assert same_share(part, whole) == "east:1"
    with pytest.raises(BadMessage):
        joined(mine, [("east:1", replace(part, uncommitted="till"))], receipt_id=WHOLE_ID, asked_us=100)


def test_a_forgotten_part_with_uncommitted_rows_does_not_hold(tmp_path: Path) -> None:
    """What no ledger knows cannot agree with what is known."""
    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("e", "n INT")
        desk = Desk(wh, wh._writer("test"))
        for uncommitted in ("", "till"):
            part = as_part(replace(receipt(["e"], []), uncommitted=uncommitted), WHOLE_ID)
            whole = joined(receipt(["m"], []), [("east:1", part)], receipt_id=WHOLE_ID, asked_us=100)
            frame = write_frame({"receipt": whole.to_json(), "address": "east:1"})
            answer = read_frame(desk.answer("group.verify", frame, Grant("tester", frozenset({READ}))), bytes_max=1 << 20)
            assert answer.header["verification"]["ok"] is (uncommitted == "")


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
