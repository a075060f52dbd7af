"""Dead letters that are tried again: they become right or stay, and the targets are at every job what recomputing gives."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import righttime as rt
from righttime.errors.flows import ReplayUnfinished, UnknownFlowLetter
from righttime.pipeline.spark import SparkOwner


class Rates:
    """Reads the rate of a currency from a file that somebody else keeps; what is in the file is no part of the declaration."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, rows: pa.Table) -> pa.Table:
        rates = dict(line.split() for line in Path(self.file).read_text().splitlines())
        found = [int(rates[currency]) for currency in rows["currency"].to_pylist()]
        return rows.append_column("paid", pc.multiply(rows["amount"], pa.array(found, pa.int64())))


def declared(file: Path) -> rt.Flow:
    """Orders with what was paid and with the name that their currency had when they came, and sums of them."""
    flow = rt.Flow("paid")
    orders = flow.stream("orders").apply(Rates(str(file)), "id INT, currency STRING, amount BIGINT, paid BIGINT", rows="same")
    names = flow.stream("names").history(keys="currency", key="version")
    orders.as_of(names, on="currency", take=["name"]).into("orders_paid", keys="id")
    return flow


def paid(wh: rt.Warehouse) -> list[tuple[Any, ...]]:
    return sorted(wh.read("orders_paid", columns=["id", "paid", "name"], wait="120s").rows())


def letters(wh: rt.Warehouse) -> dict[str, str]:
    """Return the rows of the dead letters, each with the id of its letter."""
    return {json.loads(row)["currency"]: name for name, row in wh.read("paid_dead_letters", columns=["id", "row"], wait="120s").rows()}


def test_dead_letters_are_tried_again(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Their cause lay outside of the rows: once it is mended, they pass with the next job, chosen ones or all, without any change of the streams, and in the
    next process too. What fails again stays. A row counts from when it came, not from when it was mended."""
    spark_owner.session()
    rates = tmp_path / "rates"
    rates.write_text("EUR 7\n")
    with rt.open(tmp_path / "wh", background_idle_s=0) as wh:
        wh.create_stream("orders", "id INT, currency STRING, amount BIGINT", keys=["id"])
        wh.create_stream("names", "currency STRING, name STRING", keys=["currency"])
        wh.stream("names").insert([{"currency": "DKK", "name": "Krone"}])
        with wh.run(declared(rates)) as running:
            wh.stream("orders").insert(
                [{"id": number, "currency": name, "amount": number} for number, name in ((1, "EUR"), (2, "DKK"), (3, "SEK"), (4, "NOK"))]
            )
            wh.stream("names").update([{"currency": "DKK", "name": "krone"}])
            assert paid(wh) == [(1, 7, None)]
            failed = letters(wh)
            assert failed.keys() == {"DKK", "SEK", "NOK"}
            rates.write_text("EUR 7\nDKK 1\nSEK 2\n")
            assert running.replay([failed["DKK"], failed["NOK"]], timeout="120s") == 1
            assert paid(wh) == [(1, 7, None), (2, 2, "Krone")]
            assert letters(wh).keys() == {"SEK", "NOK"}
            with pytest.raises(UnknownFlowLetter) as refused:
                running.replay([failed["DKK"], 7, None], timeout="120s")  # type: ignore[list-item]
            assert refused.value.context["ids"] == ", ".join(sorted([failed["DKK"], "7", "None"])), "what is no id stops nobody"
        with pytest.raises(ReplayUnfinished):
            running.replay()
    with rt.open(tmp_path / "wh", background_idle_s=0) as wh, wh.run(declared(rates)) as running:
        wh.stream("orders").delete([{"id": 3}])
        assert running.replay(timeout="120s") == 1
        assert paid(wh) == [(1, 7, None), (2, 2, "Krone")]
        assert letters(wh).keys() == {"NOK"}
        wh.stream("orders").delete([{"id": 4}])
        assert letters(wh) == {}
