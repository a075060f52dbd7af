"""Settling anew: what was settled is forgotten and made again, and nobody stores or reads in between as if there were nothing to settle."""

from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.catalyst.capture import Overtaken, capture
from righttime.service import Engine


def test_nothing_is_stored_between_forgetting_and_settling(tmp_path: Path) -> None:
    """Otherwise operations would count as stored that have done nothing."""
    with rt.open(tmp_path / "warehouse") as warehouse:
        warehouse.create_table("sale", "id BIGINT, qty INT", keys=["id"])
        load = warehouse.producer()
        load.insert_many("sale", [(1, 1), (2, 2)])
        load.commit(materialize=True)
        load.update("sale", {"qty": 10}, {"id": 1})
        load.commit()
        engine = warehouse._shared
        assert isinstance(engine, Engine)
        cut_us = engine.catalyst.authority.read_us()
        engine.settler.settle(["sale"], cut_us)
        engine.settler.settle_anew("sale")
        with pytest.raises(Overtaken):
            capture(engine.catalyst, own=None, stored_tables=["sale"], cuts={"sale": cut_us})
        assert sorted(warehouse.read("sale").rows()) == [(1, 10), (2, 2)]
        engine.settler.settle_anew("sale")
        warehouse.materialize()
        assert sorted(warehouse.read("sale").rows()) == [(1, 10), (2, 2)]


def test_a_commit_that_others_overtook_is_stored_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that is committed while its files are written comes first; the rows are only logged with the commit, and stored right after."""
    with rt.open(tmp_path / "warehouse") as warehouse:
        warehouse.create_table("sale", "id BIGINT, qty INT", keys=["id"])
        load, other = warehouse.producer(name="load"), warehouse.producer(name="other")
        load.insert("sale", (1, 1))
        load.commit()
        engine = warehouse._writer("test")
        commit, overtaken = engine.store.commit, list[Any]()

        def overtakes(*given: Any, **options: Any) -> int:
            if not overtaken:
                other.update("sale", {"qty": 10}, {"id": 1})
                overtaken.append(other.commit())
            return commit(*given, **options)

        monkeypatch.setattr(engine.store, "commit", overtakes)
        load.insert("sale", (2, 2))
        load.commit(durability="warehouse")
        assert engine.catalyst.table("sale").rows_unstored == 0
        assert sorted(warehouse.read("sale").rows()) == [(1, 10), (2, 2)]


def test_what_was_settled_before_a_step_that_stores_nothing_is_settled_again(tmp_path: Path) -> None:
    """A lazy commit to another table keeps the step from storing; it forgets settled rows all the same, and a query that was computing must notice."""
    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("t", "k INT, v INT", keys=["k"])
        wh.create_table("other", "x INT")
        load, lazy = wh.producer(name="load"), wh.producer(name="lazy", policy=rt.OnDemand())
        load.insert_many("t", [(1, 1), (2, 2), (3, 3)])
        load.commit(materialize=True)
        lazy.insert("other", (1,))
        lazy.commit()
        load.delete("t", {"k": 1})
        load.update("t", {"v": 20}, {"k": 2})
        load.commit()
        assert sorted(wh.read("t").rows()) == [(2, 20), (3, 3)]
        load.update("t", {"v": 21}, {"k": 2})
        load.commit()
        engine = wh._writer("test")
        compute, steps = engine.settler._compute, [lambda: engine.mover.materialize(["t"])]

        def overtaken(*args: Any, **options: Any) -> Any:
            outcome = compute(*args, **options)
            if steps:
                steps.pop()()
            return outcome

        engine.settler._compute = overtaken  # type: ignore[method-assign]
        assert sorted(wh.read("t").rows()) == [(2, 21), (3, 3)]
        lazy.flush()
        wh.materialize()
        assert (sorted(wh.read("t").rows()), steps) == ([(2, 21), (3, 3)], [])
