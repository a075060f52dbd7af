"""Between which values the changes of a step lie: never less than they can have, and enough to leave out what they cannot meet."""

from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.pipeline.flow import Flow, Step
from righttime.pipeline.nodes import Join, Node, StreamNode
from righttime.pipeline.spans import Span, SpansAsked, Traced, can_meet, spans_of
from righttime.pipeline.unique import Keys, can_carry, unique_keys

LOW, HIGH = Span(((1, 3),), False), Span(((7, 9),), False)
BOTH = Span(((1, 3), (7, 9)), False)
values = st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=4)


@given(kept=values, wanted=values)
def test_what_meets_is_never_left_out(kept: list[int | None], wanted: list[int | None]) -> None:
    """Null is a value like others: groups and rows that are compared as a whole have it."""
    spans = [spans_of(pa.table({"k": pa.array(some, pa.int64())})) for some in (kept, wanted)]
    if set(kept) & set(wanted):
        assert can_meet(*spans)
    numbers = [[value for value in some if value is not None] for some in (kept, wanted)]
    if all(numbers) and None not in kept and (max(numbers[0]) < min(numbers[1]) or max(numbers[1]) < min(numbers[0])):
        assert not can_meet(*spans)


def test_old_rows_that_change_with_new_ones_meet_only_where_they_are() -> None:
    """And not all that is between; of columns that nobody looks for values in nothing is known."""
    wanted = spans_of(pa.table({"k": [7, 300, 100_000, 100_001]}))
    for kept, meets in (([300], True), ([8, 299, 301, 99_999], False), ([100_002, 7], True), ([100_002, 6], False)):
        rows = pa.table({"k": kept})
        assert can_meet(spans_of(rows, ["k", "gone"]), wanted) is meets
        assert spans_of(rows, ["other"]) == {}


def test_the_spans_of_a_drain_are_looked_for_when_they_are_asked_for() -> None:
    """They are the same; a column that has none has none however often it is asked for."""
    rows = pa.table({"k": [1, 9], "d": [1.5, 2.5], "t": ["a", None]})
    asked = SpansAsked(rows)
    assert [asked.get(name) for name in ("k", "d", "d", "gone", "t")] == [spans_of(rows)["k"], None, None, None, spans_of(rows)["t"]]
    assert dict(asked) == spans_of(rows) and len(asked) == 2


def test_texts_are_compared_as_spark_does_and_other_types_are_not_known() -> None:
    """By their bytes in UTF-8; a long text says nothing worth keeping."""
    rows = pa.table({"t": ["Z", "ä", "a"], "long": ["x" * 65, "y", "z"], "d": [1.5, 2.5, 3.5], "empty": pa.nulls(3, pa.int32())})
    assert spans_of(rows) == {"t": Span((("Z", "Z"), ("a", "a"), ("ä", "ä")), False), "empty": Span((), True)}
    assert Span((("a", "b"),), False).meets(LOW), "who knows what Spark makes of it"
    assert not Span((), True).meets(LOW) and Span((), True).meets(Span(((1, 2),), True))


def traced(step: Step, *, changed: Iterable[str] = ("s", "d"), column: str = "k") -> Span | None:
    """Return the span of a column where `s` has low keys and `d` high ones, and these streams have changes."""

    def changes(node: Node) -> bool:
        return node.stream in changed if isinstance(node, StreamNode) else any(map(changes, node.inputs))

    return Traced({"s": {"k": LOW, "v": LOW}, "d": {"k": HIGH, "w": HIGH}}, changes).keys(step.node, [column]).get(column)


def test_columns_are_followed_as_long_as_they_are_what_they_were() -> None:
    """A column that is computed, or taken from elsewhere, is not known."""
    s, d = (flow := Flow("f")).stream("s"), flow.stream("d")
    assert traced(s.where("v > 0").distinct().expect("e", "v > 0")) == LOW
    assert traced(s.select("k").select(k=" k ")) == LOW and traced(s.select(k="v"), column="k") == LOW and traced(s.select("v")) is None
    assert traced(s.derive(k="v + 1")) is None and traced(s.derive(x="k + 1")) == LOW
    assert traced(s.derive(K="v + 1")) is None, "names differ in more than case"
    assert traced(s.aggregate(by="k", n="count(*)")) == LOW and traced(s.aggregate(by="k", n="count(*)"), column="n") is None
    assert traced(s.union(d)) == BOTH and traced(s.union(d), changed=["d"]) == HIGH
    assert traced(s.lookup(d, on="k", take="w"), column="w") is None
    assert traced(s.apply(lambda rows: rows, "k INT")) is None


@pytest.mark.parametrize(("changed", "key", "other"), [(["s"], LOW, LOW), (["d"], HIGH, None), (["s", "d"], BOTH, None)], ids=["left", "right", "both"])
def test_rows_that_are_kept_come_with_changes_of_the_other_side(changed: list[str], key: Span, other: Span | None) -> None:
    """Of a pair one row changes, so its key is known; other columns are those of a kept row, if the other side changes."""
    s, d = (flow := Flow("f")).stream("s"), flow.stream("d")
    for step in (s.join(d, on="k"), s.join(d, on="k", how="left"), s.lookup(d, on="k", take="w")):
        assert (traced(step, changed=changed), traced(step, changed=changed, column="v")) == (key, other)
    after = s.lookup(d, on="k", take="w").join(s.select("v", u="k"), on="v")
    assert isinstance(after.node, Join)
    assert traced(after, changed=["d"], column="v") is None


def test_a_join_names_its_keys_as_each_side_does() -> None:
    """State of the left side has the left names."""
    s, d = (flow := Flow("f")).stream("s"), flow.stream("d")
    node = s.join(d.select(r="w"), on={"v": "r"}).node
    assert isinstance(node, Join)
    assert Traced({"s": {"v": LOW}}, lambda node: isinstance(node, StreamNode) and node.stream == "s").joined(node) == ({"v": LOW}, {"r": LOW})


def test_steps_that_are_read_twice_over_and_over_are_followed_once() -> None:
    """The ways to a stream double with each of them; so do the keys of pairs, where each side is said to have two."""
    both = rows = (flow := Flow("f")).stream("s")
    pairs = rows.distinct()
    for level in range(40):
        both = both.where("v > 0").union(both.where("v <= 0"))
        pairs = pairs.join(rows.select(**{f"k{level}": "k", f"v{level}": "v"}).distinct(), on={"v": f"v{level}"}).distinct()
    pairs.into("t", keys="k")
    keys: dict[Node, Keys] = {}
    for node in flow.nodes().values():
        keys[node] = unique_keys(node, keys, stream_keys={"s": ("k",)}, columns=[f"all of {id(node)}"])

    assert Traced({"s": {"k": LOW}}, lambda node: True).keys(both.node, ["k"]) == {"k": LOW}
    assert can_carry(both.node) == {"_since"}
    assert keys[pairs.node] == {frozenset(["k", *(f"k{level}" for level in range(40))])}
