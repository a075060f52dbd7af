"""The flow benchmarks at their smallest size: they load, ask and compare as they do when they measure. No time is asserted."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from benchmarks import flows, flows_batches, flows_scheduling, svg
from benchmarks.flows_data import SIZES, ShopData
from benchmarks.flows_shop import NEVER, Shop, open_shop, sums
from benchmarks.flows_templates import TEMPLATES

if TYPE_CHECKING:
    from righttime.pipeline.spark import SparkOwner

TINY = SIZES["XS"]


@pytest.fixture(scope="module")
def shop(spark_owner: "SparkOwner") -> Iterator[Shop]:
    """A shop with its history loaded, with ten percent updates and deletes from then on."""
    spark_owner.session()
    with open_shop(ShopData(TINY, share=0.1), **NEVER) as opened:
        yield opened


def test_transactions_are_the_same_for_the_same_seed_and_change_what_they_should() -> None:
    """A tenth of the changes are updates and deletes, and the expectation follows them."""
    once, again = (ShopData(SIZES["S"], share=0.1) for _ in range(2))
    assert once.history() == again.history()
    made, same = (shop.transactions(20, purchases=400) for shop in (once, again))
    assert made == same
    kinds = [kind for changes in made for table in changes.values() for kind in table.column("_change_type").to_pylist()]
    assert 0.08 < 1 - kinds.count("insert") / len(kinds) < 0.12
    rows = [once.sales_at(number).num_rows for number in range(21)]
    deleted = [changes["line"].column("_change_type").to_pylist().count("delete") for changes in made]
    assert rows[20] - rows[0] == 400 * 12 - sum(deleted)
    assert sums(once.sales_at(20))[2] > sums(once.sales_at(0))[2]


def test_a_wrong_answer_is_noticed() -> None:
    """The expectation of every template changes with the transactions, so that an answer of another cut does not pass."""
    shop = ShopData(SIZES["S"])
    shop.history()
    shop.transactions(1, purchases=200)
    before, after = shop.sales_at(0), shop.sales_at(1)
    assert [template.name for template in TEMPLATES if sorted(template.answer(before)) == sorted(template.answer(after))] == []


def test_rows_are_loaded_in_jobs_and_each_job_is_right(shop: Shop) -> None:
    """X1: a job for each transaction; the target is compared at its end and at the ends of jobs."""
    assert flows._feed(shop, flows.OURS, shop.shop.transactions(4, purchases=8)) > 0


def test_the_rival_makes_the_same_target(spark_owner: "SparkOwner", tmp_path: Path) -> None:
    """foreachBatch with MERGE ends at the same rows, under updates and deletes too, in one batch and in several."""
    data = ShopData(TINY, share=0.2)
    spark_owner.session()
    rival = flows_batches.make_rival(spark_owner.session(), data, tmp_path)
    data.history()
    for files_each in (None, 2):
        rival.feed(data.transactions(3, purchases=9))
        rival.run(files_each=files_each)
        flows_batches.check(rival, data, data.number)


def test_scheduling_is_simulated_and_plotted(tmp_path: Path) -> None:
    """X6: zone-aware beats plain at both rates, more so when saturated, and the plot is there."""
    slow, fast = flows_scheduling.run("XS", plots=tmp_path)
    assert slow.met and fast.met
    assert ElementTree.parse(tmp_path / "x6_XS.svg").getroot().tag.endswith("svg")


def test_bars_are_drawn_with_the_command_that_made_them(tmp_path: Path) -> None:
    """A plot names its command."""
    path = svg.bars(tmp_path / "x.svg", "title <1>", "s", {"a": {"ours": 1.0, "rival": 2.5}, "b": {"ours": 0.0}}, command='make bench ARGS="flows"')
    texts = [element.text for element in ElementTree.parse(path).getroot().iter() if element.text]
    assert "title <1>" in texts and 'made by: make bench ARGS="flows"' in texts
