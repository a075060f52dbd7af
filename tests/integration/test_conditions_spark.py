"""Spark computes conditions and values as we do: the same masks, the same results, the same failures."""

import datetime as dt
import math
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from righttime.changes.binder import bind
from righttime.changes.conditions import parse_condition
from righttime.changes.expressions import evaluate
from righttime.changes.schema import declare_table
from righttime.errors import OperationFailed
from righttime.pipeline.translate import quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from righttime.pipeline.spark import SparkOwner

TABLE = declare_table(
    "edge",
    "n INT, a TINYINT, g SMALLINT, b INT, c BIGINT, f FLOAT, x DOUBLE, y DOUBLE, p DECIMAL(10,2), q DECIMAL(38,10), r DECIMAL(4,4), s STRING, u STRING, "
    "d DATE, t TIMESTAMP, w TIMESTAMP_NTZ, ok BOOLEAN, no BOOLEAN, z BINARY",
    keys=["n"],
)
COLUMNS: dict[str, list[Any]] = {
    "a": [0, 1, -1, 127, -128, None, 5],
    "g": [0, -7, 32767, -32768, 3, None],
    "b": [0, 1, -1, 2**31 - 1, -(2**31), None, 7, 10],
    "c": [0, 3, -3, 2**63 - 1, -(2**63), None, 2**53 + 1],
    "f": [0.0, -0.0, 1.5, math.nan, -math.nan, math.inf, -math.inf, None, 0.1, 3.4028234663852886e38],
    "x": [0.0, -0.0, 2.5, math.nan, -math.nan, math.inf, -math.inf, None, 0.1, 1e-30, 1.7976931348623157e308, 9.3e18],
    "y": [1.0, math.nan, None, -2.5, 0.0, 1e300, 127.9, -128.9],
    "p": [Decimal("0.00"), Decimal("1.50"), Decimal("-1.55"), Decimal("99999999.99"), Decimal("-99999999.99"), None, Decimal("0.05")],
    "q": [Decimal("0"), Decimal("1.0000000005"), Decimal("-3.3333333333"), Decimal("9" * 28 + "." + "9" * 10), None, Decimal("0.0000000001")],
    "r": [Decimal("0.0000"), Decimal("0.0001"), Decimal("-0.9999"), None, Decimal("0.5000")],
    "s": ["", "a", "A", " a ", "ß", "Straße", "%", "a_b", "\n", None, "日本", "Σας ΟΔΟΣ", "a\\b", "it's"],
    "u": ["", "12", " 12 ", "+5", "-129", "1.5", "1e3", "abc", "true", "NaN", "2026-01-31", "2026-01-31 12:30:00.5", None, "ı", "99999999999999999999"],
    "d": [dt.date(1970, 1, 1), dt.date(2026, 1, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(1969, 12, 31)],
    "t": [
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 31, 12, 30, 0, 500_000, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
        None,
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    ],
    "w": [dt.datetime(1970, 1, 1), dt.datetime(2026, 1, 31), None, dt.datetime(1969, 12, 31, 23, 0, 0, 1)],
    "ok": [True, False, None],
    "no": [False, None, True, True],
    "z": [b"", b"\x00", b"\xff", None, b"ab"],
}
ROWS = 60
VALUES = r"""
    a + a; a + 1; a - b; b + b; b * c; c + 1; c - 1L; -a; -b; -c; abs(a); abs(c); abs(x); abs(p); g * a; g + 1S; a * 2Y; b / 2; b / a; a / b;
    x / y; x / 0.5; f / 2; c / 3; b % 3; b % a; c % -1; a % 0Y; x % y; x % 0.3D; f % 2; -7 % 3; mod(b, 7); p + p; p + 1; p - b; p * p; p * 2;
    p * 1.1; p / 3; p / p; p / b; p % 1; p % 0.4; q / 7; q % 0.3; b / p; 1 / r; r / 3; p / 1.5; -p; q + 1; q * 2; q * q; q + q; p + q; r * p; q * r;
    r / p; p % r; r % 3; p + x; x + y; x * y; x - y; f + f; f * 2; f + b; f + x; f + p; c + f; -x; -f; a + c; p + c; r + 1; 1.5 + 1; b * 1.5;
    cast(a as int); cast(b as tinyint); cast(c as int); cast(x as int); cast(x as bigint); cast(y as tinyint); cast(f as smallint);
    cast(c as double); cast(c as float); cast(x as float); cast(p as int); cast(q as bigint); cast(p as decimal(4,1));
    cast(q as decimal(10,5)); cast(b as decimal(5,2)); cast(c as decimal(38,18)); cast(p as double); cast(q as double); cast(q as float);
    cast(x as decimal(10,3)); cast(y as decimal(20,2)); cast(f as decimal(10,5)); cast(a as string); cast(c as string); cast(p as string);
    cast(q as string); cast(r as string); cast(ok as string); cast(d as string); cast(t as string); cast(w as string); cast(u as int);
    cast(u as tinyint); cast(u as bigint); cast(u as double); cast(u as float); cast(u as boolean); cast(u as decimal(6,1));
    cast(b as boolean); cast(p as boolean); cast(x as boolean); cast(ok as int); cast(ok as double); cast(ok as decimal(3,1));
    cast(d as timestamp); cast(d as timestamp_ntz); cast(t as date); cast(w as date); cast(t as timestamp_ntz); cast(w as timestamp);
    cast(null as int); int(p); b::string; s || u; concat(s, '-', u); concat(s); lower(s); upper(s); upper(u); trim(s); ltrim(s); rtrim(s);
    length(s); char_length(s); length(z); 'a' 'b'; cast(s as varchar(1)); case when b > 0 then 'up' when b < 0 then 'down' end; case b when 7 then 1 else 2 end;
    case when a <> 0 then b / a else 0 end; case when ok then p else b end; if(ok, b, c); coalesce(a, b, c); coalesce(p, 0); coalesce(x, 1);
    coalesce(s, u); nullif(b, 7); nullif(x, 0); nullif(s, ''); nvl(a, 0); coalesce(d, t); 1; -128Y; 12L; 1.50; 1e3; 2.5F; 1.5BD; -0.0;
    date '2026-01-31'; timestamp '2026-01-31 12:00:00'; timestamp_ntz '2026-01-31'; x'0aff'; 'it''s'; 'a\nb\\'; 2147483648; -2147483648;
    9223372036854775808; b + case when no then 1 else 0 end; a + b + c; a - -1; b - 1 - 1; 2 + 3 * 4; -b * 2
"""
CONDITIONS = r"""
    a = 5; a = 300; a < 5.5; b = 1.0; b <> 7; b != 7; b == 7; c > 9007199254740992; c = 9007199254740993D; 5 < b; x = y; x <> y; x < y; x <= y;
    x > y; x >= y; x = 0; x = -0.0D; f = 0.1; f = 0.1F; f < x; f = 1.5; x > cast('NaN' as double); x >= cast('NaN' as double);
    x = cast('NaN' as double); x < cast('Infinity' as double); p = 1.5; p = 1.555; p > 0; p < x; p = q; q > p; r < p; p <> 0.05; s = 'a';
    s < 'b'; s >= u; s = ''; z = x'ff'; z < x'80'; d = '2026-01-31'; d < date '1970-01-01'; t >= '2026-01-31 12:30:00.5'; t > d; d = w; w < t;
    w = timestamp '1970-01-01 00:00:00'; t = '2026-01-31T13:30:00.5+01:00'; ok; not ok; ok = no; ok < no; ok and no; ok or no; ok is true;
    ok is not true; ok is false; ok is null; ok and null; ok or null; not (ok and no); !ok; ! b = 7; b is null; b is not null; b <=> null;
    b <=> 7; a <=> b; x <=> y; b is distinct from 7; b is not distinct from c; s <=> u; b in (1, 7); b in (1, null); b not in (1, 7);
    b not in (1, null); x in (0.0, 2.5); x in (cast('NaN' as double)); f not in (cast('NaN' as float), 0.0F); s in ('a', ''); b in (1.5, 7);
    a in (300, 5); p in (1.5, 0);
    b between 0 and 10; b not between 0 and 10; x between -1 and 3; s between 'a' and 'b'; p between 0.01 and 2; 5 between a and b;
    d between '1969-01-01' and '2000-01-01'; s like 'a%'; s like '%a%'; s like '_'; s like '__'; s like '\\%'; s like 'a\\_b';
    s not like '%a%'; s like 'a#_b' escape '#'; s like ''; s like '%'; s like 'a.b'; s like 'a\\\\b'; a + 1 > b; a <> 0 and b / a > 0;
    a = 0 or b % a = 1; a / 0 > 1 and false; false and a / 0 > 1; length(s) = 1; lower(s) = 'a'; b % 2 = 0; true; false; null;
    b > 1 and b < 8 or not ok; not b > 1 and ok; not b in (7) or no; b + 1 between 1 and 8 and ok; -b < 3; (b = 7) = ok; ok = (b < 7); edge.b = 7; `B` = 7;
    ok = no is null;
    s || 'x' = 'ax'; coalesce(ok, false); case when ok then no else ok end; b + null > 1; c = 9223372036854775807; c < 1e19; b < 3000000000;
    x = 1e-30; 1 = 1; 'a' < 'b'; (b + 1) * 2 > 10; b - (a - 1) > 0; b > 0 and (ok or no); a <> 0 and (b / a > 0 or ok); s = 'it\'s'; s = "A";
    a*b>0; b>=-1
"""
MORE_CONDITIONS = ["b IN (7) AND -- a comment\n ok"]


def cases(texts: str) -> list[str]:
    """Return the expressions of a list."""
    return [one.strip() for one in texts.split(";")]


@cache
def edge_rows() -> pa.Table:
    """Return rows in which each column runs through its edges at its own pace."""
    numbers = range(ROWS)
    arrays = [pa.array(numbers, pa.int32())]
    for place, field in enumerate(list(TABLE.columns)[1:]):
        edges = COLUMNS[field.name]
        arrays.append(pa.array([edges[(number + number // len(edges) * (place + 1)) % len(edges)] for number in numbers], field.type))
    return pa.Table.from_arrays(arrays, schema=TABLE.columns)


@pytest.fixture(scope="module")
def session(spark_owner: "SparkOwner") -> "SparkSession":
    """Return a session with the rows as the view `edge`."""
    child = spark_owner.child()
    child.createDataFrame(edge_rows()).createOrReplaceTempView("edge")
    return child


@pytest.fixture(scope="module")
def answers(session: "SparkSession") -> dict[str, pa.Table]:
    """Return Spark's values for the expressions that fail for no row, many in one query, as columns `v` (as written) and `c` (canonical)."""
    texts = [text for text in [*cases(VALUES), *cases(CONDITIONS), *MORE_CONDITIONS] if not bind(text, TABLE).can_fail]
    found: dict[str, pa.Table] = {}
    for group in (texts[start : start + 40] for start in range(0, len(texts), 40)):
        columns = ", ".join(f"({text}\n) AS v{place}, ({bind(text, TABLE).text}) AS c{place}" for place, text in enumerate(group))
        rows = session.sql(f"SELECT n, {columns} FROM edge ORDER BY n").toArrow()
        found |= {text: pa.table({"n": rows["n"], "v": rows[f"v{place}"], "c": rows[f"c{place}"]}) for place, text in enumerate(group)}
    return found


def same(left: Any, right: Any) -> bool:
    """Compare two values, NaN with NaN and zeros with their signs."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (left == right and math.copysign(1, left) == math.copysign(1, right))
    return type(left) is type(right) and left == right


@cache
def ours(text: str) -> tuple[list[Any], list[int], pa.DataType, str]:
    """Return our value for each row, the rows that fail, the type, and the canonical text."""
    term, rows = bind(text, TABLE), edge_rows()
    values: list[Any] = []
    failed: list[int] = []
    for number in range(rows.num_rows):
        try:
            values += evaluate(term, rows.slice(number, 1), term.type, table="edge", column="n").to_pylist()
        except OperationFailed:
            failed.append(number)
            values.append(None)
    good = pa.array([number not in failed for number in range(rows.num_rows)])
    together = evaluate(term, rows.filter(good), term.type, table="edge", column="n").to_pylist()
    assert all(same(one, other) for one, other in zip(together, [v for n, v in enumerate(values) if n not in failed], strict=True)), text
    assert term.can_fail or not failed, text
    assert bind(term.text, TABLE).text == term.text
    return values, failed, term.type, term.text


def check(text: str, session: "SparkSession", answers: dict[str, pa.Table], *, stricter: bool = False) -> None:
    """Compare values, types and failures with Spark's, for the text as written and for its canonical form."""
    values, failed, type_, canonical = ours(text)
    good = ", ".join(str(number) for number in range(ROWS) if number not in failed)
    query = f"SELECT n, ({text}\n) AS v, ({canonical}) AS c FROM edge WHERE n IN ({good or 'NULL'}) ORDER BY n"
    found = answers[text] if text in answers else session.sql(query).toArrow()
    for number, value, again in zip(found["n"].to_pylist(), found["v"].to_pylist(), found["c"].to_pylist(), strict=True):
        assert same(values[number], value), (text, edge_rows().slice(number, 1).to_pylist(), values[number], value)
        assert same(value, again), (text, canonical)
    assert found["v"].type == type_ or pa.types.is_null(type_), text
    # A row that fails here fails there, too; two of them tell.
    for number in [] if stricter else failed[:2]:
        with pytest.raises(PySparkException), quiet():
            session.sql(f"SELECT ({text}\n) AS v FROM edge WHERE n = {number}").collect()


@pytest.mark.parametrize("text", cases(VALUES))
def test_spark_computes_the_same_values(text: str, session: "SparkSession", answers: dict[str, pa.Table]) -> None:
    """Each row gets the same value of the same type, or fails in both."""
    check(text, session, answers)


@pytest.mark.parametrize("text", ["cast(u as date)", "cast(u as timestamp)", "cast(u as timestamp_ntz)"])
def test_spark_reads_the_same_dates_or_more(text: str, session: "SparkSession", answers: dict[str, pa.Table]) -> None:
    """A text that we read as a date or time is the same one in Spark; forms that only Spark reads fail here."""
    check(text, session, answers, stricter=True)


@pytest.mark.parametrize("text", [*cases(CONDITIONS), *MORE_CONDITIONS])
def test_spark_finds_the_same_rows(text: str, session: "SparkSession", answers: dict[str, pa.Table]) -> None:
    """Each row is true, false or null in both, and the mask holds the true ones."""
    check(text, session, answers)
    condition = parse_condition(text, TABLE)
    values, failed, _, _ = ours(text)
    if not failed:
        assert condition.mask(edge_rows()).to_pylist() == [value is True for value in values]
