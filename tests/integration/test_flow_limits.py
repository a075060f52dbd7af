"""Rows that a target cannot hold, wherever the warehouse is: they are dead letters until they are mended, and the flow goes on."""

from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.pipeline.spark import SparkOwner
from tests.support.everywhere import DELTA, POSTGRES, opened_at
from tests.support.postgres import TempPostgres


def rows(wh: rt.Warehouse, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table with everything that has come."""
    return sorted(wh.read(table, columns=list(columns), wait="120s").rows(), key=repr)


@pytest.mark.parametrize("place", [DELTA, POSTGRES])
def test_a_row_that_the_table_cannot_hold_is_a_dead_letter(place: str, tmp_path: Path, postgres: TempPostgres, spark_owner: SparkOwner) -> None:
    """A text that is too long, an empty value of a partition, a character that the database has not: none of them stops the flow."""
    spark_owner.session()
    with opened_at(place, tmp_path, postgres) as wh:
        wh.create_stream("s", "k INT, area STRING, x STRING", keys=["k"])
        wh.create_table("t", "k INT, area STRING, x VARCHAR(3)", keys=["k"], partition_by=["area"] if place == DELTA else [])
        flow = rt.Flow("f")
        flow.stream("s").into("t", keys="k")
        odd = {"k": 3, "area": "", "x": "c"} if place == DELTA else {"k": 3, "area": "n", "x": "\0"}
        with wh.run(flow):
            wh.stream("s").insert([{"k": 1, "area": "n", "x": "a"}, {"k": 2, "area": "n", "x": "long"}, odd])
            assert rows(wh, "t", "k", "x") == [(1, "a")]
            assert sorted(step for (step,) in rows(wh, "f_dead_letters", "step")) == ["into_t", "into_t"]
            wh.stream("s").update([{"k": 2, "area": "n", "x": "b"}, {"k": 3, "area": "n", "x": "c"}])
            assert rows(wh, "t", "k", "x") == [(1, "a"), (2, "b"), (3, "c")]
            assert rows(wh, "f_dead_letters", "step") == []
            wh.materialize()
