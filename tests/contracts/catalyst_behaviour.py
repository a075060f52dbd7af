"""What loading and reading do, whether the catalyst is in this process or behind a wire.

A test module makes a class from `CatalystBehaviour` with a fixture `opened` that opens a new, empty warehouse with given settings; all rules below
then run on it. Nothing here starts Spark.
"""

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import righttime as rt
from righttime import errors
from righttime.changes.conditions import Expression

Opened = Callable[..., Any]


def skus(wh: Any, table: str = "sale", **contract: Any) -> list[int]:
    return sorted(row[0] for row in wh.read(table, **contract).rows())


def rows(wh: Any, table: str = "sale", **contract: Any) -> list[tuple[Any, ...]]:
    return sorted(wh.read(table, **contract).rows())


def shop(opened: Opened, **settings: Any) -> Any:
    wh = opened(**settings)
    wh.create_table("sale", "sku INT, qty INT", keys=["sku"])
    wh.create_table("note", "sku INT, words STRING")
    return wh


EVERYWHERE: tuple[tuple[str, Any], ...] = (
    ("BOOLEAN", True),
    ("BIGINT", -(2**63)),
    ("DOUBLE", float("inf")),
    ("STRING", "é\n"),
    ("DATE", date(1, 1, 1)),
    ("TIMESTAMP", datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    ("TIMESTAMP_NTZ", datetime(2026, 1, 2, 3, 4, 5, 6)),
    ("DECIMAL(20,4)", Decimal("1234567890123456.7890")),
    ("BINARY", b"\0\xff"),
    ("ARRAY<INT>", [1, None, 3]),
)
"""Types that every warehouse has, and a value of each that is not easy."""


class CatalystBehaviour:
    """The rules; `opened` opens an empty warehouse, and `kinds` are types with a value each, some of which only its place has."""

    kinds: tuple[tuple[str, Any], ...] = (*EVERYWHERE, ("STRING", "é\n\0"), ("STRUCT<a: INT, z: STRING>", {"a": 1, "z": None}))

    # -- commits -----------------------------------------------------------------------------------------------------

    def test_rows_are_visible_by_commit_and_not_before(self, opened: Opened) -> None:
        """A commit makes its rows visible in all tables together; a rollback makes them go."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 10))
            load.insert_many("note", [(1, "a"), (2, None)])
            assert (skus(wh), skus(wh, "note")) == ([], [])
            published = load.commit()
            assert (skus(wh), skus(wh, "note"), published.commit.number, published.replayed) == ([1], [1, 2], 1, False)
            load.insert("sale", (2, 20))
            load.rollback()
            assert load.commit().commit.number == 2
        assert rows(wh) == [(1, 10)]

    def test_numbers_and_times_of_commits_grow(self, opened: Opened) -> None:
        """Each commit has the next number and a later time."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            commits = []
            for number in range(5):
                load.insert("sale", (number, 0))
                commits.append(load.commit().commit)
        assert [commit.number for commit in commits] == [1, 2, 3, 4, 5]
        assert [commit.time_us for commit in commits] == sorted({commit.time_us for commit in commits})

    def test_a_reader_sees_its_own_uncommitted_rows_nowhere_else(self, opened: Opened) -> None:
        """Rows of one open transaction are invisible to another producer's commits."""
        wh = shop(opened)
        with wh.producer(name="a") as first, wh.producer(name="b") as second:
            first.insert("sale", (1, 1))
            second.insert("sale", (2, 2))
            second.commit()
            assert skus(wh) == [2]
            first.commit()
        assert skus(wh) == [1, 2]

    @pytest.mark.parametrize("durability", ["memory", "log", "warehouse"])
    def test_each_durability_is_visible_and_counted(self, opened: Opened, durability: str) -> None:
        """Whatever a commit promises about crashes, its rows are there at once."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(1, 1), (2, 2)])
            load.commit(durability=durability)
            status = wh.status()
            table = next(one for one in status.tables if one.name == "sale")
            assert (table.rows_stored, table.rows_hot) == ((2, 0) if durability == "warehouse" else (0, 2))
            assert status.rows_unsafe == (2 if durability == "memory" else 0)
            assert skus(wh) == [1, 2]

    def test_a_batch_id_commits_once(self, opened: Opened) -> None:
        """The second commit under a batch id drops its rows and returns the first."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            first = load.commit(batch_id="monday", durability="log")
            load.insert("sale", (1, 1))
            again = load.commit(batch_id="monday")
            assert (again.commit, again.replayed, first.replayed) == (first.commit, True, False)
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            assert load.commit(batch_id="monday", materialize=True).commit == first.commit
        assert skus(wh) == [1]

    def test_large_commits_go_past_the_catalyst(self, opened: Opened) -> None:
        """A commit over bypass_bytes is stored at once, in one piece with the rest of its transaction."""
        wh = shop(opened, bypass_bytes=10_000)
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(number, number) for number in range(5000)])
            load.insert("note", (1, "small"))
            load.commit()
        status = {table.name: table for table in wh.status().tables}
        assert (status["sale"].rows_stored, status["note"].rows_hot, len(wh.read("sale"))) == (5000, 1, 5000)

    def test_tables_without_memory_keep_rows_in_the_warehouse(self, opened: Opened) -> None:
        """A table declared with in_memory=False stores at each commit."""
        wh = shop(opened)
        wh.create_table("archive", "sku INT", in_memory=False)
        with wh.producer(name="till") as load:
            load.insert("archive", (7,))
            load.commit()
        status = {table.name: table for table in wh.status().tables}
        assert (status["archive"].rows_stored, skus(wh, "archive")) == (1, [7])

    def test_many_producers_at_once_lose_and_double_nothing(self, opened: Opened) -> None:
        """Threads with a producer each: every row once, every producer's commits numbered without gaps."""
        wh = shop(opened)
        last: dict[int, int] = {}

        def work(worker: int) -> None:
            with wh.producer(name=f"worker-{worker}", policy=rt.OnDemand() if worker % 2 else None) as load:
                for number in range(20):
                    load.insert("sale", (worker * 100 + number, worker))
                    last[worker] = load.commit().commit.number

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert last == dict.fromkeys(range(4), 20)
        assert skus(wh) == sorted(worker * 100 + number for worker in range(4) for number in range(20))

    # -- operations --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("unique", [False, True])
    def test_a_key_is_updated_like_any_other_column(self, opened: Opened, unique: bool) -> None:
        """By key, by condition, among others; onto a key that is taken it is refused where keys are unique."""
        wh = opened()
        wh.create_table("sale", "sku INT, qty INT", keys=["sku"], unique=unique)
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(number, number) for number in range(1, 5)])
            load.commit()
            load.update("sale", {"sku": 11}, {"sku": 1})
            load.update("sale", {"sku": 12, "qty": 0}, "sku = 2")
            load.update_many("sale", [{"sku": 3, "qty": 30}])
            load.commit()
            assert rows(wh) == [(3, 30), (4, 4), (11, 1), (12, 0)]
            load.update("sale", {"sku": 4}, {"sku": 11})
            if unique:
                with pytest.raises(errors.KeyTaken):
                    load.commit()
                load.rollback()
            else:
                load.commit()
        assert [sku for sku, _ in rows(wh)] == ([3, 4, 11, 12] if unique else [3, 4, 4, 12])

    def test_updates_deletes_and_upserts_take_effect_in_order(self, opened: Opened) -> None:
        """Operations of a transaction reach the rows before them, at its commit."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(1, 1), (2, 2), (3, 3)])
            load.commit()
            load.update("sale", {"qty": 20}, {"sku": 2})
            load.delete("sale", {"sku": 3})
            load.upsert("sale", {"sku": 4, "qty": 40})
            load.upsert("sale", {"sku": 1, "qty": 10})
            assert rows(wh) == [(1, 1), (2, 2), (3, 3)]
            load.commit()
            assert rows(wh) == [(1, 10), (2, 20), (4, 40)]
            load.update("sale", {"qty": Expression("qty + 1")}, "qty >= 20")
            load.commit()
        assert rows(wh) == [(1, 10), (2, 21), (4, 41)]

    def test_changes_reach_stored_and_sealed_rows(self, opened: Opened) -> None:
        """Rows that are in files, of the warehouse or of the catalyst, are left out of answers once they have ended."""
        wh = shop(opened, segment_rows=4)
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(number, 0) for number in range(10)])
            load.commit(materialize=True)
            load.insert_many("sale", [(number, 0) for number in range(10, 20)])
            load.commit()
            assert len(wh.read("sale")) == 20
            load.delete("sale", "sku % 2 = 0")
            load.update("sale", {"qty": 5}, {"sku": 3})
            load.update("sale", {"qty": 5}, {"sku": 13})
            load.commit()
        expected = [(number, 5 if number in (3, 13) else 0) for number in range(1, 20, 2)]
        assert rows(wh) == expected
        wh.materialize()
        assert rows(wh) == expected

    def test_operations_of_a_lazy_producer_do_not_wait_and_take_along_what_it_held_back(self, opened: Opened) -> None:
        """A commit with operations is in the catalyst at once, after all rows committed before it; rows alone wait again."""
        wh = shop(opened)
        with wh.producer(name="till", policy=rt.OnDemand()) as load:

            def unflushed() -> list[int]:
                return [producer.rows_unflushed for producer in wh.status().producers]

            load.insert_many("sale", [(1, 1), (2, 2)])
            load.commit()
            assert unflushed() == [2]
            load.update_many("sale", [{"sku": 1, "qty": 11}, {"sku": 2, "qty": 22}])
            load.delete_many("sale", [{"sku": 2}])
            load.commit()
            assert unflushed() == [0]
            assert rows(wh, freshness="1h") == [(1, 11)]  # nobody is asked for anything
            load.insert("sale", (3, 3))
            load.commit()
            assert (unflushed(), rows(wh)) == ([1], [(1, 11), (3, 3)])

    # -- lazy producers ----------------------------------------------------------------------------------------------

    def test_lazy_commits_stay_until_a_query_needs_them(self, opened: Opened) -> None:
        """A query that allows staleness does not ask; one that does not gets everything."""
        wh = shop(opened)
        with wh.producer(name="till", policy=rt.OnDemand()) as load:
            load.insert("sale", (1, 1))
            load.commit()
            assert [producer.rows_unflushed for producer in wh.status().producers] == [1]
            assert skus(wh, freshness="1h") == []
            assert skus(wh) == [1]
            assert [producer.rows_unflushed for producer in wh.status().producers] == [0]

    def test_flush_and_close_deliver(self, opened: Opened) -> None:
        """flush() moves what is archived; so does close()."""
        wh = shop(opened)
        load = wh.producer(name="till", policy=rt.OnDemand())
        load.insert("sale", (1, 1))
        load.commit()
        load.flush("sale")
        assert skus(wh, freshness="1h") == [1]
        load.insert("sale", (2, 2))
        load.commit()
        load.close()
        assert skus(wh, freshness="1h") == [1, 2]

    def test_an_exact_cut_is_answered_exactly(self, opened: Opened) -> None:
        """as_of a commit's time gives what was committed up to it, asked for from a lazy producer."""
        wh = shop(opened)
        with wh.producer(name="till", policy=rt.OnDemand()) as load:
            times = []
            for number in range(3):
                load.insert("sale", (number, 0))
                times.append(load.commit().commit.time_us)
            assert [skus(wh, as_of=time_us) for time_us in times] == [[0], [0, 1], [0, 1, 2]]

    def test_a_full_catalyst_refuses_and_keeps_everything(self, opened: Opened) -> None:
        """A commit that finds no room raises; the transaction and the archive are as they were, and go through later."""
        wh = shop(opened, memory_bytes_max=2_000, spill_bytes_max=0, full_wait_s=0.0)
        with wh.producer(name="lazy", policy=rt.OnDemand()) as lazy, wh.producer(name="till") as load:
            lazy.insert_many("sale", [(-number - 1, 0) for number in range(100)])
            lazy.commit()
            load.insert_many("sale", [(number, 0) for number in range(200)])
            load.commit()
            load.insert_many("sale", [(number + 1000, 0) for number in range(200)])
            with pytest.raises(errors.CatalystFull):
                load.commit()
            with pytest.raises(errors.CatalystFull):
                lazy.flush()
            load.commit(materialize=True)
            wh.materialize()
            lazy.flush()
        assert len(wh.read("sale")) == 500

    # -- declarations and names --------------------------------------------------------------------------------------

    def test_declarations_are_shared_and_checked(self, opened: Opened) -> None:
        """A table is declared once, with if_not_exists as often as it is the same; views resolve."""
        wh = shop(opened)
        assert wh.tables() == ["note", "sale"]
        assert wh.create_table("sale", "sku INT, qty INT", keys=["sku"], if_not_exists=True) == wh.schema("SALE")
        with pytest.raises(errors.TableExists):
            wh.create_table("sale", "sku INT")
        with pytest.raises(errors.BadTable):
            wh.create_table("sale", "other STRING", if_not_exists=True)
        with pytest.raises(errors.BadTable):
            wh.create_table("9", "a INT")
        wh.create_view("big", "SELECT * FROM sale WHERE qty > 1")
        assert wh.views() == {"big": "SELECT * FROM sale WHERE qty > 1"}
        with pytest.raises(errors.UnknownTable):
            wh.create_view("worse", "SELECT * FROM nothing")

    def test_sources_have_one_producer_at_a_time(self, opened: Opened) -> None:
        """A second producer of an open source is refused; nameless ones get free names, which are used again."""
        wh = shop(opened)
        with wh.producer(name="till"), pytest.raises(errors.BadSource):
            wh.producer(name="till")
        for name in ("", "delta.x", "n" * 191):
            with pytest.raises(errors.BadSource):
                wh.producer(name=name)
        with wh.producer() as first, wh.producer() as second:
            assert {first.source, second.source} == {"producer-1", "producer-2"}
        with wh.producer() as third:
            assert third.source == "producer-1"

    @pytest.mark.parametrize(
        ("wrong", "kind"),
        [
            (lambda wh, load: load.insert("nothing", (1,)), errors.UnknownTable),
            (lambda wh, load: load.insert("sale", (1, "x")), errors.WrongType),
            (lambda wh, load: load.insert("sale", {"sku": 1, "colour": 2}), errors.UnknownColumn),
            (lambda wh, load: load.insert("sale", (None, 1)), errors.NullNotAllowed),
            (lambda wh, load: wh.read("nothing"), errors.UnknownTable),
            (lambda wh, load: wh.read("sale", columns=["nothing"]), errors.UnknownColumn),
            (lambda wh, load: wh.read("sale", freshness="soon"), errors.BadFreshness),
            (lambda wh, load: wh.read("sale", as_of=1), errors.AsOfUnavailable),
            (lambda wh, load: wh.receipt("nothing"), errors.ReceiptUnknown),
            (lambda wh, load: wh.verify("{}"), errors.ReceiptForged),
            (lambda wh, load: wh.materialize("nothing"), errors.UnknownTable),
            (lambda wh, load: load.commit(durability="maybe"), errors.BadSetting),
        ],
    )
    def test_wrong_input_raises_the_same_error_and_changes_nothing(self, opened: Opened, wrong: Callable[[Any, Any], Any], kind: type[Exception]) -> None:
        """An error has its class, code and context wherever the catalyst is; the transaction goes on."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            load.commit(durability="warehouse")
            load.insert("sale", (2, 2))
            with pytest.raises(kind) as caught:
                wrong(wh, load)
            assert isinstance(caught.value, errors.RightTimeError) and "{" not in str(caught.value).replace("'{}'", "")
            load.commit()
        assert skus(wh) == [1, 2]

    # -- answers -----------------------------------------------------------------------------------------------------

    def test_answers_carry_receipts_that_hold(self, opened: Opened) -> None:
        """A receipt says what was read, is found again by its first characters, verifies, and cannot be changed."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(1, 1), (2, 2)])
            load.commit(materialize=True)
            load.insert("sale", (3, 3))
            load.commit()
        receipt = wh.read("sale").receipt
        assert [(table.name, table.rows_stored, table.rows_hot) for table in receipt.tables] == [("sale", 2, 1)]
        assert (receipt.rows, receipt.asked_s, receipt.late, [cut.last_inside.number for cut in receipt.cut]) == (3, 0.0, False, [2])
        assert receipt.verify() and wh.verify(receipt.to_json()) and wh.receipt(receipt.receipt_id[:12]) == receipt
        assert wh.receipts(limit=1) == [receipt]
        with pytest.raises(errors.ReceiptForged):
            wh.verify(receipt.to_json().replace('"rows":3', '"rows":4'))

    def test_values_of_every_type_come_back_as_they_went_in(self, opened: Opened) -> None:
        """Numbers, texts, times, bytes, decimals and nested values cross unchanged, stored and hot."""
        wh = opened()
        wh.create_table("kinds", ", ".join(f"c{place} {kind}" for place, (kind, _) in enumerate(self.kinds)))
        row = tuple(value for _, value in self.kinds)
        nothing = (None,) * len(row)
        with wh.producer(name="till") as load:
            load.insert_many("kinds", [row, nothing])
            load.commit(materialize=True)
            load.insert_many("kinds", [row, nothing])
            load.commit()
        assert sorted(wh.read("kinds").rows(), key=str) == sorted([row, row, nothing, nothing], key=str)

    def test_arrow_goes_in_and_out(self, opened: Opened) -> None:
        """insert_arrow takes batches; read gives a table, or some of its columns."""
        wh = shop(opened)
        with wh.producer(name="till") as load:
            load.insert_arrow("sale", pa.table({"QTY": pa.array([5, 6], pa.int64()), "sku": pa.array([1, 2], pa.int32())}))
            load.commit()
        assert wh.read("sale", columns=["qty"]).arrow().to_pydict() == {"qty": [5, 6]}

    def test_materialize_and_gc_change_no_answer(self, opened: Opened) -> None:
        """Rows move from memory to the warehouse, lazy producers' first; what they say stays."""
        wh = shop(opened)
        with wh.producer(name="till", policy=rt.OnDemand()) as load:
            for number in range(3):
                load.insert("sale", (number, number))
                load.commit()
            before = rows(wh)
            load.insert("sale", (9, 9))
            load.commit()
            state = wh.materialize("sale")
            assert (wh.status().state_durable, rows(wh)) == (state, [*before, (9, 9)])
            assert set(wh.gc()) == {"note", "sale"}
            assert rows(wh) == [*before, (9, 9)]
            assert wh.losses() == []

    def test_a_closed_handle_is_closed(self, opened: Opened) -> None:
        """Closing closes the producers, twice is once, and later calls say what is the matter."""
        wh = shop(opened)
        load = wh.producer(name="till", policy=rt.OnDemand())
        load.insert("sale", (1, 1))
        load.commit()
        wh.close()
        wh.close()
        assert load.closed
        with pytest.raises(errors.WarehouseClosed):
            wh.read("sale")
        with pytest.raises(errors.ProducerClosed):
            load.insert("sale", (2, 2))
