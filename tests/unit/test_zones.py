"""The zone finder (A11): which operators have to keep pace, in both layouts, from operators and from declarations."""

import pytest

from righttime.pipeline.flow import Flow
from righttime.pipeline.reach import ONE_TASK, one_task
from righttime.pipeline.zones import Operator, Zone, describe_in_step, describe_zones, find_zones, operators_of

FIGURE_3_6 = (
    Operator("filter", branch="ΔR"),
    Operator("lookup", reads=("date",), branch="ΔS"),  # nobody writes the date dimension
    Operator("update-R", writes=("R",), branch="ΔR"),
    Operator("ΔR⋈S", reads=("S",), branch="ΔR"),
    Operator("R⋈ΔS", reads=("R",), branch="ΔS"),
    Operator("update-S", writes=("S",), branch="ΔS"),
    Operator("ΔR⋈ΔS", branch="pairs"),
    Operator("dup-elim", branch="out"),
)
SCD = (
    Operator("item_sk-lookup", reads=("item",), branch="plin", role="lookup"),
    Operator("update-I_old", writes=("item",), branch="item", role="version"),
    Operator("insert-I_new", writes=("item",), branch="item", role="version"),
)


def test_at_30_per_table_the_join_has_two_zones() -> None:
    """Reader and writer of each staging table are one zone; the other operators are free."""
    assert find_zones(FIGURE_3_6) == (
        Zone(("R",), ("update-R", "R⋈ΔS"), "same_job"),
        Zone(("S",), ("ΔR⋈S", "update-S"), "same_job"),
    )


def test_at_30_per_loop_all_four_share_one_barrier() -> None:
    """The two zones form a dependency loop over the branches, so the paper's layout has one barrier."""
    assert find_zones(FIGURE_3_6, layout="loop") == (Zone(("R", "S"), ("update-R", "ΔR⋈S", "R⋈ΔS", "update-S"), "same_job"),)


@pytest.mark.parametrize("layout", ["table", "loop"])
def test_at_30_a_dimension_with_versions_is_an_ordered_zone(layout: str) -> None:
    """Look-up, closing and opening of versions take turns, task by task."""
    assert find_zones(SCD, layout=layout) == (Zone(("item",), ("item_sk-lookup", "update-I_old", "insert-I_new"), "ordered_task"),)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["table", "loop"])
def test_at_30_a_lookup_on_an_immutable_dimension_is_in_no_zone(layout: str) -> None:
    """A table that nobody writes needs no pace."""
    assert find_zones([Operator("lookup", reads=("date",))], layout=layout) == ()  # type: ignore[arg-type]


def test_a_table_versioned_by_job_needs_no_zone() -> None:
    """Readers take the version of the job before theirs (A10.3)."""
    assert find_zones(FIGURE_3_6, versioned=["R", "S"]) == ()


def test_an_operator_that_alone_reads_and_writes_a_table_is_no_zone() -> None:
    """Class b: its transactions are serial anyway."""
    assert find_zones([Operator("average", reads=("price",), writes=("price",))]) == ()


def test_without_a_loop_the_layouts_agree() -> None:
    """One shared table between two branches is no cycle."""
    operators = (Operator("write", writes=("X",), branch="a"), Operator("read", reads=("X",), branch="b"))

    assert find_zones(operators, layout="loop") == find_zones(operators) == (Zone(("X",), ("write", "read"), "same_job"),)


def test_two_loops_stay_two_barriers() -> None:
    """Zones share a barrier only with those on their own cycle."""
    other = tuple(
        Operator(f"{operator.name}2", tuple(f"{t}2" for t in operator.reads), tuple(f"{t}2" for t in operator.writes), f"{operator.branch}2")
        for operator in FIGURE_3_6
    )

    assert [zone.tables for zone in find_zones(FIGURE_3_6 + other, layout="loop")] == [("R", "S"), ("R2", "S2")]


def test_at_30_from_a_declaration() -> None:
    """A declared join gives the four operators of the figure; a look-up of a constant stream gives no zone."""
    flow = Flow("sales")
    lines = flow.stream("line").where("qty > 0").lookup(flow.stream("item"), on="item_id", take=["item_sk"])
    lines.join(flow.stream("purchase"), on="purc_id").into("sale", keys=["line_id"])

    operators = operators_of(flow, constant=["item"])

    assert [zone.members for zone in find_zones(operators)] == [("06_join: update L", "06_join: L⋈ΔR"), ("06_join: ΔL⋈R", "06_join: update R")]
    assert [zone.tables for zone in find_zones(operators, layout="loop")] == [("06_join.left", "06_join.right")]


def test_at_30_a_declared_history_is_an_ordered_zone() -> None:
    """`history` and `as_of` are the type 2 dimension and its look-up."""
    flow = Flow("sales")
    items = flow.stream("item").history(keys=["item_id"], key="item_sk")
    flow.stream("line").as_of(items, on="item_id", take=["item_sk"]).into("sale", keys=["line_id"])
    items.into("item_history", keys=["item_sk"])

    (zone,) = find_zones(operators_of(flow))

    assert zone.mode == "ordered_task"
    assert zone.members == ("03_history: close old version", "03_history: insert new version", "04_as_of: look up version")


def test_plain_words_say_what_is_read_in_step() -> None:
    """Whoever declares a flow knows streams and steps, not operators: the first lines of the dry run are about those."""
    flow = Flow("sales")
    items = flow.stream("item").history(keys=["item_id"], key="item_sk")
    lines = flow.stream("line").join(flow.stream("purchase"), on="purc_id")
    lines.as_of(items, on="item_id", take=["item_sk"]).into("sale", keys=["line_id"])

    first, *steps = describe_in_step(flow).splitlines()

    assert first == "Read in step, so that an answer has these streams up to one and the same moment:"
    assert steps == [
        "  03_join reads line in step with purchase",
        "  06_as_of reads line, purchase in step with item, each row with the version of its own time",
    ]


def test_a_flow_over_one_stream_keeps_nothing_in_step() -> None:
    flow = Flow("sales")
    flow.stream("line").where("qty > 0").into("sale", keys=["line_id"])

    assert describe_in_step(flow) == "No step reads two inputs, so nothing has to be read in step."


def test_steps_that_are_read_twice_over_and_over_are_looked_at_once() -> None:
    """The ways to a stream double with each of them: a dry run of thirty would never have ended."""
    flow = Flow("sales")
    lines = flow.stream("line")
    for _ in range(40):
        lines = lines.where("qty > 0").union(lines.where("qty <= 0"))
    lines.join(lines.select("line_id"), on="line_id").into("sale", keys=["line_id"])

    assert describe_in_step(flow).endswith("_join reads line in step with itself")
    assert len(find_zones(operators_of(flow))) == 2
    assert find_zones(operators_of(flow, constant=["line"])) == ()
    assert one_task(flow.nodes().values()).keys() - ONE_TASK.keys() == {"spark.sql.unionOutputPartitioning"}, "else Spark goes every way, too"
    assert one_task(list(flow.nodes().values())[:20]) == ONE_TASK, "as long as there are few"


def test_the_text_names_members_and_pace() -> None:
    """Where it is known what operators cost, a fast one that is tied to a slow one is seen (A11.5); the dry run does not know it of Spark."""
    text = describe_zones(FIGURE_3_6, costs={"update-R": 1.0, "R⋈ΔS": 5.0})

    assert "R [same job]: update-R, R⋈ΔS (slowest/fastest 5.0)" in text
    assert "as one barrier for each loop: R, S" in text
    assert describe_zones([]) == "no consistency zones: no operator shares a changing table."
