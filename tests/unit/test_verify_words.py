"""Which queries on PostgreSQL may give other rows when they are run again over the same ones."""

import pytest

from righttime.query.verify import _VOLATILE_IN_POSTGRES


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT count(*), rank() OVER (ORDER BY n) FROM sale", []),
        ("SELECT limits, offsets, model, lagging FROM sale", []),
        ("SELECT * FROM sale ORDER BY n LIMIT 1", ["LIMIT"]),
        ("SELECT * FROM sale OFFSET 2", ["OFFSET"]),
        ("SELECT DISTINCT  ON (n) * FROM sale", ["DISTINCT  ON"]),
        ("SELECT row_number() OVER (ORDER BY n), string_agg(t, ','), jsonb_agg(t) FROM sale", ["row_number", "string_agg", "jsonb_agg"]),
        ("SELECT mode() WITHIN GROUP (ORDER BY n), now() FROM sale", ["mode", "now"]),
    ],
)
def test_what_may_differ_between_two_runs_on_postgresql_is_named(query: str, found: list[str]) -> None:
    assert _VOLATILE_IN_POSTGRES.findall(query) == found
