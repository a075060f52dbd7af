"""Histories of type 2 and the version of a fact's own commit time: the tables of the paper, and the law."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType

from righttime.pipeline.operators import current
from righttime.pipeline.operators.history import as_of, history
from righttime.pipeline.operators.join import Sides
from righttime.pipeline.operators.query import Reach
from righttime.pipeline.operators.query import frame_of as frame_of_relation
from righttime.pipeline.operators.signed import Signed
from righttime.pipeline.spark import SparkOwner
from tests.integration.test_signed_operators import JOBS, LAW, frame_of
from tests.support.signed_histories import REACHES, Changes, Drains, Row, Runner, compare_every_job, drainings, in_several_jobs, session

STAMP = pa.timestamp("us", tz="UTC")
ITEM = pa.schema([("bk", pa.string()), ("price", pa.int32())])
SALE = pa.schema([("id", pa.int32()), ("bk", pa.string()), ("_since", pa.int64())])
TYPES = {"bk": StringType(), "price": IntegerType()}
HIDDEN = pa.schema([("_since", pa.int64()), ("_ordinal", pa.int64()), ("_commit_timestamp", STAMP)])


@dataclass
class Stream:
    """A keyed stream as the queues keep it: each change with the time and the number of the image it begins or ends."""

    rows: list[Row] = field(default_factory=list)
    living: dict[Any, Row] = field(default_factory=dict)
    images: int = 0

    def put(self, key: Any, row: Row | None, *, at: int, job: int) -> None:
        """Insert, update, or delete (None) the row of a key at a commit time."""
        if key in self.living:
            image, since, ordinal = self.living.pop(key)
            self.rows.append((*image, since, ordinal, stamp(at), job, -1))
        if row is not None:
            self.living[key] = (row, at, self.images)
            self.rows.append((*row, at, self.images, stamp(at), job, 1))
            self.images += 1

    def changes(self, schema: pa.Schema) -> Changes:
        return Changes(schema, self.rows, HIDDEN)

    def facts(self) -> Changes:
        """Return the changes with `_since` as one of their columns."""
        return Changes(SALE, [(*row[:-4], *row[-2:]) for row in self.rows])


def stamp(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)


@pytest.fixture(scope="module")
def runner(spark_owner: SparkOwner) -> Runner:
    """One session for the whole file."""
    return Runner(session(spark_owner.child()))


def operate(deltas: Sequence[Signed | None], state: Any, *, few: bool = False) -> Any:
    """The flow of the paper: the history of items, and sales with the version of their time."""
    items, sales = deltas
    versions, runs = versions_of(items, state)
    made, parts = as_of(sales, versions, state, on=[("bk", "bk")], take={"sk": "sk"}, types={"sk": LongType()}, start="valid_from", end="valid_to", few=few)
    return {"items": frame_of(versions), "sales": frame_of(made)}, {**runs, **parts}


def versions_of(items: Signed | None, state: Any) -> Any:
    """The history of items, and what is kept of it."""
    return history(items, state, keys=["bk"], types=TYPES, key="sk", key_from=100, start="valid_from", end="valid_to")


def at_14(*, query_at_5_5: bool) -> tuple[Stream, Stream]:
    """Item abc has price 9 at 0, 10 at 2 and 12 at 6; sales 1 at 5 and 2 at 8."""
    later = 2 if query_at_5_5 else 1
    items, sales = Stream(), Stream()
    for at, price in ((0, 9), (2, 10), (6, 12)):
        items.put("abc", ("abc", price), at=at, job=later if at > 5 else 1)
    sales.put(1, (1, "abc"), at=5, job=1)
    sales.put(2, (2, "abc"), at=8, job=later)
    return items, sales


def added_up(rows: Sequence[Row], *, job: int, width: int) -> set[Row]:
    sums: Counter[Row] = Counter()
    for row in rows:
        if row[-2] <= job:
            sums[row[:width]] += row[-1]
    assert set(sums.values()) <= {0, 1}
    return {row for row, count in sums.items() if count}


VERSIONS = {("abc", 9, 100, stamp(0), stamp(2)), ("abc", 10, 101, stamp(2), stamp(6)), ("abc", 12, 102, stamp(6), None)}


def test_at_14_a_fact_takes_the_version_of_its_own_time(runner: Runner) -> None:
    """All in one job: sale 1 gets 101, sale 2 gets 102, although both versions came with the same job."""
    items, sales = at_14(query_at_5_5=False)
    made = runner.run([items.changes(ITEM), sales.facts()], Drains([range(1, 2)]), operate)
    assert added_up(made["items"], job=1, width=5) == VERSIONS
    assert {(row[0], row[1], row[3]) for row in added_up(made["sales"], job=1, width=4)} == {(1, "abc", 101), (2, "abc", 102)}


@pytest.mark.parametrize("drains", [Drains([range(1, 3)]), Drains([range(1, 2), range(2, 3)])], ids=["one drain", "two drains"])
def test_at_16_a_query_between_sees_the_first_sale_only(runner: Runner, drains: Drains) -> None:
    """Cut at 5.5 into two jobs: the same tables in the end, and only sale 1 with 101 before."""
    items, sales = at_14(query_at_5_5=True)
    made = runner.run([items.changes(ITEM), sales.facts()], drains, operate)
    assert added_up(made["items"], job=1, width=5) == {("abc", 9, 100, stamp(0), stamp(2)), ("abc", 10, 101, stamp(2), None)}
    assert {(row[0], row[3]) for row in added_up(made["sales"], job=1, width=4)} == {(1, 101)}
    assert added_up(made["items"], job=2, width=5) == VERSIONS
    assert {(row[0], row[3]) for row in added_up(made["sales"], job=2, width=4)} == {(1, 101), (2, 102)}


STEPS = st.lists(
    st.tuples(st.integers(1, JOBS), st.booleans(), st.integers(1, 3), st.sampled_from(["a", "b", None]), st.sampled_from([0, 1, 2])), min_size=14, max_size=24
).filter(in_several_jobs)


def streams(steps: list[tuple[int, bool, int, str | None, int]]) -> tuple[Stream, Stream]:
    """Steps one after the other, several in one commit at times; each changes an item, at times to what it was, or a sale."""
    items, sales = Stream(), Stream()
    at = 0
    last_job = 0
    for job, is_item, number, key, what in sorted(steps, key=lambda one: one[0]):
        at += 0 if job == last_job and number == 2 else 1 if job == last_job and number == 3 else 10
        last_job = job
        if is_item:
            items.put(key or "c", None if what == 0 else (key or "c", what), at=at, job=job)
        else:
            sales.put(number, None if what == 0 else (number, key), at=at, job=job)
    return items, sales


KEYS = ["a", "a", "a", "a", "b", None]
MANY_STEPS = st.lists(
    st.tuples(st.integers(1, JOBS), st.booleans(), st.integers(1, 12), st.sampled_from(KEYS), st.sampled_from([0, 1, 2, 3, 4])), min_size=50, max_size=80
).filter(in_several_jobs)


@LAW
@given(steps=MANY_STEPS, drains=drainings(JOBS), facts_max=st.sampled_from([1, 2, 3]), items_late=st.booleans())
def test_many_facts_of_one_key_take_their_versions_at_every_job(
    runner: Runner, steps: list[tuple[int, bool, int, str | None, int]], drains: Drains, facts_max: int, items_late: bool
) -> None:
    """The facts of one key are in many parts, and versions in several of them; at times all versions come a job after their commits."""
    items, sales = streams(steps)
    if items_late:
        items.rows = [(*row[:-2], min(row[-2] + 1, JOBS), row[-1]) for row in items.rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(current, "FACTS_MAX", facts_max)
        made = runner.run([items.changes(ITEM), sales.facts()], drains, operate)
    facts = sales.facts()

    def expected(job: int) -> Counter[Row]:
        return Counter({(*sale, version_at(plain_history(items, job), sale)): n for sale, n in facts.at(job).items()})

    compare_every_job(made.get("sales", []), expected, jobs_max=JOBS, width=4)


@LAW
@given(steps=STEPS, drains=drainings(JOBS))
def test_few_facts_are_compared_with_all_versions_to_the_same_end(runner: Runner, steps: list[tuple[int, bool, int, str | None, int]], drains: Drains) -> None:
    """What a small drain does for the sake of a smaller plan."""
    items, sales = streams(steps)
    facts = sales.facts()
    made = runner.run([items.changes(ITEM), facts], drains, partial(operate, few=True))

    def expected(job: int) -> Counter[Row]:
        return Counter({(*sale, version_at(plain_history(items, job), sale)): n for sale, n in facts.at(job).items()})

    compare_every_job(made.get("sales", []), expected, jobs_max=JOBS, width=4)


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("tied", [False, True], ids=["times of their own", "one commit"])
@pytest.mark.parametrize("later", [False, True], ids=["one drain", "facts in a later drain"])
def test_facts_meet_few_versions_of_a_key_that_has_many(runner: Runner, monkeypatch: pytest.MonkeyPatch, later: bool, tied: bool, reach: Reach) -> None:
    """400 versions and 400 facts of one key: with each other they are 160,000 pairs, three times as many before what versions were is taken back."""
    count, facts_max = 400, 4
    items, sales = Stream(), Stream()
    for number in range(count):
        items.put("abc", ("abc", number), at=10 * number, job=1)
        at = (5 if tied else 10 * number + 5) + (10 * count if later else 0)
        sales.put(number, (number, "abc"), at=at, job=2 if later else 1)
    monkeypatch.setattr(current, "FACTS_MAX", facts_max)
    looked_at = []
    product = Sides.product

    def counting(sides: Sides, left: str, right: str, *, sent: str, where: str = "") -> str:
        equal = " AND ".join(["l.bk = r.__on_0", *(term for term in where.split(" AND ") if " = " in term)])
        looked_at.append(frame_of_relation(sides.run(f"SELECT 1 FROM {left} l JOIN {right} r ON {equal}")).count())
        return product(sides, left, right, sent=sent, where=where)

    monkeypatch.setattr(Sides, "product", counting)
    made = runner.run([items.changes(ITEM), sales.facts()], Drains([range(1, 2), range(2, 3)] if later else [range(1, 2)], reach), operate)["sales"]
    assert {row[0]: row[3] for row in added_up(made, job=2, width=4)} == {
        number: 100 + (count - 1 if later else 0 if tied else number) for number in range(count)
    }
    assert sum(looked_at) <= (facts_max + 1) * 2 * count


@LAW
@given(steps=STEPS, drains=drainings(JOBS))
def test_at_15_one_version_of_a_living_row_has_no_end_and_facts_take_theirs_at_every_job(
    runner: Runner, steps: list[tuple[int, bool, int, str | None, int]], drains: Drains
) -> None:
    """At every job: versions follow one another without gap, one is open exactly while the row lives, and each sale has the version of its time or null."""
    items, sales = streams(steps)
    made = runner.run([items.changes(ITEM), sales.facts()], drains, operate)
    for job in range(JOBS + 1):
        versions = added_up(made.get("items", []), job=job, width=5)
        assert versions == plain_history(items, job)
        living = Counter(row[:2] for row in items.changes(ITEM).at(job))
        assert Counter(row[0] for row in versions if row[4] is None) == Counter(row[0] for row in living)
    facts = sales.facts()

    def expected(job: int) -> Counter[Row]:
        return Counter({(*sale, version_at(plain_history(items, job), sale)): n for sale, n in facts.at(job).items()})

    compare_every_job(made.get("sales", []), expected, jobs_max=JOBS, width=4)


def plain_history(items: Stream, job: int) -> set[Row]:
    """Return the versions after a job: each image that lasted, from its begin to the commit that ended it; one that equals its forerunner prolongs that."""
    begun = {row[3]: row for row in items.rows if row[-1] > 0 and row[-2] <= job}
    ended = {row[3]: row[4] for row in items.rows if row[-1] < 0 and row[-2] <= job}
    versions: list[list[Any]] = []
    for ordinal, row in sorted(begun.items()):
        start, end = stamp(row[2]), ended.get(ordinal)
        same = [version for version in versions if version[:2] == list(row[:2]) and version[4] == start]
        if same and end != start:
            same[0][4] = end
        elif end != start:
            versions.append([*row[:2], 100 + ordinal, start, end])
    return {tuple(version) for version in versions}


def version_at(versions: set[Row], sale: Row) -> int | None:
    found = [row[2] for row in versions if row[0] == sale[1] and row[3] <= stamp(sale[2]) and (row[4] is None or stamp(sale[2]) < row[4])]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("drains", [Drains([range(1, 4)]), Drains([range(1, 2), range(2, 3), range(3, 4)], reach="task")], ids=["one drain", "three drains"])
def test_a18_what_does_not_change_a_version_opens_none(runner: Runner, drains: Drains) -> None:
    """An update of a column that is not looked at, twice, then one of the price; and one commit in which the price goes and comes back."""
    items = Stream()
    items.put("abc", ("abc", 9), at=0, job=1)
    items.put("abc", ("abc", 9), at=2, job=2)
    items.put("abc", ("abc", 9), at=4, job=2)
    for price in (12, 10, 9):
        items.put("abc", ("abc", price), at=5, job=2)
    items.put("abc", ("abc", 12), at=6, job=3)

    def only_items(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, runs = versions_of(deltas[0], state)
        return {"items": frame_of(made)}, runs

    made = runner.run([items.changes(ITEM)], drains, only_items)
    assert added_up(made["items"], job=2, width=5) == {("abc", 9, 100, stamp(0), None)}
    assert added_up(made["items"], job=3, width=5) == {("abc", 9, 100, stamp(0), stamp(6)), ("abc", 12, 106, stamp(6), None)}


def test_a_version_that_comes_after_the_fact_is_still_taken(runner: Runner) -> None:
    """The stream of items is late by a job: the sale has no version first, then the one of its time, and keeps it when that ends."""
    items, sales = Stream(), Stream()
    sales.put(1, (1, "abc"), at=5, job=1)
    items.put("abc", ("abc", 10), at=2, job=2)
    items.put("abc", ("abc", 12), at=6, job=3)
    items.put("abc", ("abc", 13), at=4, job=4)
    for groups in ([range(1, 4)], [range(1, 2), range(2, 3), range(3, 4)]):
        made = runner.run([items.changes(ITEM), sales.facts()], Drains(groups), operate)["sales"]
        assert [{row[3] for row in added_up(made, job=job, width=4)} for job in (1, 2, 3)] == [{None}, {100}, {100}]


def test_a_fact_of_the_same_commit_takes_the_new_version(runner: Runner) -> None:
    """A version is current from its start on, and at its end no longer; so at the time of a commit there is exactly one."""
    items, sales = Stream(), Stream()
    items.put("abc", ("abc", 9), at=0, job=1)
    items.put("abc", ("abc", 10), at=5, job=2)
    sales.put(1, (1, "abc"), at=5, job=2)
    for groups in ([range(1, 3)], [range(1, 2), range(2, 3)]):
        made = runner.run([items.changes(ITEM), sales.facts()], Drains(groups), operate)["sales"]
        assert {(row[0], row[3]) for row in added_up(made, job=2, width=4)} == {(1, 101)}


def test_nothing_comes_of_nothing() -> None:
    """Without changes nothing is planned."""
    assert history(None, {}, keys=["bk"], types=TYPES, key="sk", key_from=1, start="s", end="e") == (None, {})
    assert as_of(None, None, {}, on=[("bk", "bk")], take={"sk": "sk"}, types={"sk": LongType()}, start="s", end="e") == (None, {})
