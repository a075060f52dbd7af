"""Which tables are stored together, and in which order: by what refers to what."""

from righttime.catalyst.bonds import connected, in_order

STAR = {"sale": {"customer", "item"}, "customer": {"city"}, "visit": {"page"}}


def test_tables_are_connected_in_both_directions_and_through_others() -> None:
    """A dimension brings its facts, and these their other dimensions; what nobody refers to stays alone."""
    assert connected({"city"}, STAR) == {"city", "customer", "sale", "item"}
    assert connected({"page"}, STAR) == {"page", "visit"}
    assert connected({"note"}, STAR) == {"note"}
    assert connected((), STAR) == set()


def test_what_is_referred_to_comes_first() -> None:
    """Only the tables of the step count; names decide the rest."""
    assert in_order(["sale", "city", "item", "customer", "a"], STAR) == ["a", "city", "customer", "item", "sale"]
    assert in_order(["sale", "city"], STAR) == ["city", "sale"]


def test_a_circle_is_cut_somewhere() -> None:
    """The others are still in order."""
    assert in_order(["a", "b", "c"], {"a": {"b", "a"}, "b": {"a"}, "c": {"a"}}) == ["b", "a", "c"]
