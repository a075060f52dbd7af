"""What every ledger does, whatever keeps it.

A ledger's test module makes a class from `BookBehaviour` with the fixtures `ledger`, a new one for writing with bounds of eight, and `reader`,
which opens the same one for reading; all rules below then run on it.
"""

import threading
from collections.abc import Callable

import pytest

from righttime.changes.position import Commit, SourceCut
from righttime.changes.schema import declare_table
from righttime.errors import AsOfUnavailable, CommitFailed, WarehouseClosed, WarehouseReadOnly
from righttime.ledger.book import Batch, Book, Loss
from righttime.ledger.receipts import Receipt
from righttime.ledger.state import EMPTY, LogPosition, State

Reader = Callable[[], Book]


def state_of(number: int) -> State:
    """Return a state without tables: those belong to a store."""
    return State(number, number * 10, number + 2, {}, {"till": Commit(number, number * 10)}, LogPosition(0, 0), LogPosition(0, number))


def receipt_of(name: str, *, state: int = 1) -> Receipt:
    cut = (SourceCut("till", Commit(1, 10), None),)
    return Receipt(name, "w", state, "SELECT '%s', '\0ä'", (), (), cut, 10, 0.0, 0.0, False, 0.0, 1, "d", 20).sealed(b"key")


class BookBehaviour:
    """The rules."""

    def test_a_new_warehouse_has_the_empty_state_and_an_identity(self, ledger: Book) -> None:
        """Its newest state is state 0, and nobody else has its key."""
        assert (ledger.newest_state(), ledger.last_number()) == (EMPTY, 0)
        assert (len(ledger.seal_key), len(ledger.warehouse_id)) == (32, 32)

    def test_what_is_declared_comes_back_in_order(self, ledger: Book, reader: Reader) -> None:
        """Tables and views are known with the state that came with them, to other processes too."""
        sale, item = declare_table("sale", "sku INT, qty INT", keys=["sku"]), declare_table("item", "name STRING")
        ledger.write_state(state_of(1), kind="declare", table=sale)
        ledger.write_state(state_of(2), kind="declare", table=item)
        ledger.write_state(state_of(3), kind="declare", view=("big", "SELECT * FROM sale WHERE qty > 9"))
        for book in (ledger, reader()):
            assert (book.tables(), book.views()) == ([sale, item], {"big": "SELECT * FROM sale WHERE qty > 9"})
            assert (book.warehouse_id, book.seal_key, book.newest_state()) == (ledger.warehouse_id, ledger.seal_key, state_of(3))

    def test_a_reader_leaves_pins_and_receipts_but_no_state(self, ledger: Book, reader: Reader) -> None:
        """What a reader writes is visible to the writer; states and losses are refused."""
        ledger.write_state(state_of(1), kind="commit")
        other = reader()
        pin, state = other.pin_newest("reader", expires_us=100)
        other.save_receipt(receipt_of("r1"))

        assert state == state_of(1)
        assert ledger.pinned_states(now_us=50) == [1]
        assert ledger.receipt("r1") == receipt_of("r1")
        with pytest.raises(WarehouseReadOnly):
            other.write_state(state_of(2), kind="commit")
        with pytest.raises(WarehouseReadOnly):
            other.note_loss([])
        other.remove_pin(pin)
        assert ledger.pinned_states(now_us=50) == []

    def test_a_closed_ledger_says_so(self, ledger: Book) -> None:
        """Every call after close is WarehouseClosed; closing twice is fine."""
        ledger.close()
        ledger.close()
        with pytest.raises(WarehouseClosed):
            ledger.newest_state()
        with pytest.raises(WarehouseClosed):
            ledger.write_state(state_of(1), kind="commit")

    def test_states_are_found_exactly_and_around(self, ledger: Book) -> None:
        """Numbers between durable states find both neighbours."""
        for number in (2, 5):
            ledger.write_state(state_of(number), kind="commit")
        assert ledger.state(5) == state_of(5)
        assert ledger.state(3) is None
        assert ledger.state_around(3) == (state_of(2), state_of(5))
        assert ledger.state_around(5) == (state_of(5), state_of(5))
        assert ledger.state_around(9) == (state_of(5), None)
        assert ledger.state_around(-1) == (None, EMPTY)

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_state_that_is_not_newer_is_refused(self, ledger: Book, number: int) -> None:
        """U5: of two movers that build on the same state, the second commits nothing."""
        ledger.write_state(state_of(2), kind="commit")
        with pytest.raises(CommitFailed):
            ledger.write_state(state_of(number), kind="commit", batches=[Batch("till", "b1", Commit(1, 1), number, 1)])
        assert ledger.newest_state() == state_of(2)
        assert ledger.batch("till", "b1") is None
        ledger.write_state(state_of(3), kind="commit")

    def test_a_batch_id_is_committed_once_per_source(self, ledger: Book) -> None:
        """I7: a replayed batch commits nothing, nor does anything that came with it."""
        batch = Batch("till", "b1", Commit(1, 10), state=1, rows=7)
        ledger.write_state(state_of(1), kind="commit", batches=[batch])
        other = Batch("web", "b1", Commit(1, 20), state=2, rows=1)

        with pytest.raises(CommitFailed, match="committed before") as caught:
            ledger.write_state(state_of(2), kind="commit", batches=[other, batch])

        assert caught.value.retryable
        assert ledger.batch("till", "b1") == batch
        assert ledger.batch("web", "b1") is None
        assert ledger.newest_state().number == 1
        ledger.write_state(state_of(2), kind="commit", batches=[other])
        assert ledger.batch("web", "b1") == other

    def test_old_states_and_batches_are_forgotten_within_bounds(self, ledger: Book) -> None:
        """Both stay near their maximum, and the newest always stay; a pin on the state that is only in memory holds no old ones."""
        ledger.add_pin("head", 10**6, expires_us=10**9)
        for number in range(1, 41):
            ledger.write_state(state_of(number), kind="commit", batches=[Batch("till", f"b{number}", Commit(number, number), number, 1)])
        held = [number for number in range(41) if ledger.state(number)]
        batches = [number for number in range(1, 41) if ledger.batch("till", f"b{number}")]
        for kept in (held, batches):
            assert 8 <= len(kept) <= 8 + 2
            assert kept == list(range(41 - len(kept), 41))

    def test_pinned_states_are_not_forgotten(self, ledger: Book) -> None:
        """A pin on a state that was never durable keeps the durable neighbours on both sides; an expired pin keeps nothing."""
        for number in (2, 4, 6, 8):
            ledger.write_state(state_of(number), kind="commit")
        ledger.add_pin("long", 5, expires_us=1_000_000)
        ledger.add_pin("short", 2, expires_us=90)
        for number in range(10, 40):
            ledger.write_state(state_of(number), kind="commit")
        assert [number for number in range(10) if ledger.state(number)] == [4, 6]
        assert ledger.state_around(5) == (state_of(4), state_of(6))

    def test_a_forgotten_state_cannot_be_pinned(self, ledger: Book) -> None:
        """A pin that could hold nothing is refused, and says what can still be had."""
        for number in range(1, 30):
            ledger.write_state(state_of(number), kind="commit")
        with pytest.raises(AsOfUnavailable, match="state"):
            ledger.add_pin("late", 1, expires_us=10**9)
        assert ledger.pinned_states(now_us=0) == []

    def test_a_pin_lives_until_its_time_and_cannot_be_revived(self, ledger: Book) -> None:
        """Renewal works on live pins only: what an ended pin held may be gone."""
        pin = ledger.add_pin("query", 0, expires_us=10)
        assert ledger.renew_pin(pin, expires_us=20, now_us=9)
        assert ledger.pinned_states(now_us=19) == [0]
        assert ledger.pinned_states(now_us=20) == []
        assert not ledger.renew_pin(pin, expires_us=30, now_us=20)

    def test_receipts_are_found_by_the_beginning_of_their_id(self, ledger: Book) -> None:
        """Newest first; an id is no pattern."""
        for name in ("ab1", "b%2", "ab3", "a_4"):
            ledger.save_receipt(receipt_of(name))
        assert ledger.receipts_beginning("ab", limit=10) == [receipt_of("ab3"), receipt_of("ab1")]
        assert ledger.receipts_beginning("ab", limit=1) == [receipt_of("ab3")]
        assert ledger.receipts_beginning("a_", limit=10) == [receipt_of("a_4")]
        assert ledger.receipts_beginning("%", limit=10) == []

    def test_receipts_come_back_newest_first_and_bounded(self, ledger: Book) -> None:
        """The ledger keeps about receipts_max of them; the greatest number in them counts for later states."""
        for number in range(30):
            ledger.save_receipt(receipt_of(f"r{number}", state=number))
        assert ledger.receipts(limit=3) == [receipt_of(f"r{number}", state=number) for number in (29, 28, 27)]
        assert 8 <= len(ledger.receipts(limit=1000)) <= 8 + 2
        assert ledger.receipt("r0") is None
        assert ledger.last_number() == 29

    def test_a_receipt_is_saved_once(self, ledger: Book) -> None:
        """A second receipt of the same id changes nothing."""
        ledger.save_receipt(receipt_of("r", state=1))
        ledger.save_receipt(receipt_of("r", state=2))
        assert ledger.receipts(limit=9) == [receipt_of("r", state=1)]

    def test_losses_of_one_trace_are_noted_once(self, ledger: Book) -> None:
        """Recovery that was killed after noting and runs again reports no loss twice; a new crash does count."""
        loss = Loss("till", first=3, last=9, rows=700, found_us=5)
        ledger.note_loss([loss], trace_id="t1")
        ledger.note_loss([loss], trace_id="t1")
        assert ledger.losses() == [loss]
        ledger.note_loss([loss], trace_id="t2")
        assert ledger.losses() == [loss, loss]

    def test_many_threads_share_one_ledger(self, ledger: Book) -> None:
        """Receipts, pins and states from several threads all arrive."""

        def work(thread: int) -> None:
            for number in range(10):
                ledger.save_receipt(receipt_of(f"{thread}-{number}"))
                ledger.remove_pin(ledger.add_pin("t", 10**6, expires_us=10**12))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for number in range(1, 11):
            ledger.write_state(state_of(number), kind="commit")
        for thread in threads:
            thread.join()
        assert ledger.newest_state() == state_of(10)
        assert ledger.pinned_states(now_us=0) == []
