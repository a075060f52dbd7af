"""Declarations of tables: what is accepted, what is refused, and in which words."""

import pyarrow as pa
import pytest

from righttime.changes.schema import TableSchema, declare_table
from righttime.changes.types import text_length_max
from righttime.errors import BadTable

UTC = pa.timestamp("us", tz="UTC")
NTZ = pa.timestamp("us")

DDL_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL": pa.decimal128(10, 0),
    "DECIMAL(12)": pa.decimal128(12, 0),
    "DECIMAL(12, 3)": pa.decimal128(12, 3),
    "NUMERIC(5,2)": pa.decimal128(5, 2),
    "DEC(5,2)": pa.decimal128(5, 2),
    "STRING": pa.string(),
    "VARCHAR(20)": pa.string(),
    "CHAR(3)": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": UTC,
    "TIMESTAMP_LTZ": UTC,
    "TIMESTAMP_NTZ": NTZ,
    "ARRAY<INT>": pa.list_(pa.int32()),
    "MAP<STRING, DOUBLE>": pa.map_(pa.string(), pa.float64()),
    "STRUCT<x: INT, y STRING>": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    "ARRAY<STRUCT<a: MAP<INT, ARRAY<DATE>>>>": pa.list_(pa.struct([("a", pa.map_(pa.int32(), pa.list_(pa.date32())))])),
}


@pytest.mark.parametrize("text", DDL_TYPES, ids=str)
def test_a_spark_type_becomes_its_arrow_type(text: str) -> None:
    """Every common Spark SQL type has one Arrow type here, in any case of letters."""
    assert declare_table("t", f"c {text}").columns.field("c").type == DDL_TYPES[text]
    assert declare_table("t", f"c {text.lower()}").columns.field("c").type == DDL_TYPES[text]


ARROW_TYPES = [
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.timestamp("ns"), NTZ),
    (pa.timestamp("s"), NTZ),
    (pa.timestamp("ms", tz="Europe/Copenhagen"), UTC),
    (pa.date64(), pa.date32()),
    (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
    (pa.uint8(), pa.int16()),
    (pa.uint32(), pa.int64()),
    (pa.uint64(), pa.decimal128(20, 0)),
    (pa.float16(), pa.float32()),
    (pa.decimal256(30, 4), pa.decimal128(30, 4)),
    (pa.large_list(pa.large_string()), pa.list_(pa.string())),
    (pa.list_(pa.int32(), 3), pa.list_(pa.int32())),
    (pa.map_(pa.large_string(), pa.timestamp("ns")), pa.map_(pa.string(), NTZ)),
    (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
]


@pytest.mark.parametrize(("given", "canonical"), ARROW_TYPES, ids=lambda one: str(one))
def test_an_arrow_type_is_brought_into_its_canonical_form(given: pa.DataType, canonical: pa.DataType) -> None:
    """Variants of one type in Arrow are one type in a table."""
    assert declare_table("t", pa.schema([("c", given)])).columns.field("c").type == canonical


def test_a_declaration_keeps_nullability_comments_and_bounds() -> None:
    """NOT NULL, COMMENT and the length of VARCHAR survive; key columns are never null."""
    table = declare_table("Sale", "Sku INT, note VARCHAR(9) NOT NULL COMMENT 'it\\'s short' -- the end", keys=["SKU"], comment="what was sold")

    assert (table.name, table.keys, table.comment) == ("sale", ("Sku",), "what was sold")
    note = table.columns.field("note")
    assert not note.nullable
    assert note.metadata[b"comment"] == b"it's short"
    assert text_length_max(note) == 9
    assert not table.columns.field("Sku").nullable
    assert text_length_max(table.columns.field("Sku")) is None


REFUSED_COLUMNS = {
    "": "at least one column",
    "a": "not a column with a type",
    "a FOO": "not a column list",
    "a INTERVAL": "not known",
    "a INT(3)": "not known",
    "a VARCHAR": "not complete",
    "a ARRAY": "not known",
    "a ARRAY<VARCHAR(3)>": "use STRING",
    "a STRUCT<b: CHAR(3)>": "use STRING",
    "a DECIMAL(39, 0)": "1 to 38 digits",
    "a DECIMAL(3, 4)": "1 to 38 digits",
    "a TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP_NTZ",
    "a INT DEFAULT 3": "only NOT NULL and COMMENT",
    "a INT PRIMARY KEY": "only NOT NULL and COMMENT",
    "a INT, A STRING": "there twice",
    "a STRUCT<b: INT, B: INT>": "there twice",
    "_a INT": "begins with _",
    "`a b` INT": "not a plain name",
    "a INT) USING csv OPTIONS (x 1": "not a column list",
    "a INT) AS SELECT (1": "not a column list",
    "a INT); DROP TABLE x; SELECT (1": "not a column list",
}


@pytest.mark.parametrize("text", REFUSED_COLUMNS, ids=str)
def test_a_bad_column_list_is_refused_with_its_reason(text: str) -> None:
    """What cannot be kept is refused before anything exists; the error names the table and why."""
    with pytest.raises(BadTable, match=REFUSED_COLUMNS[text]) as caught:
        declare_table("t", text)
    assert (caught.value.code, caught.value.context["table"]) == ("table.bad", "t")


@pytest.mark.parametrize("given", [pa.time64("us"), pa.duration("s"), pa.null(), pa.month_day_nano_interval(), pa.struct([]), pa.decimal256(50, 2)], ids=str)
def test_an_arrow_type_without_counterpart_is_refused(given: pa.DataType) -> None:
    """No silent conversion to something else."""
    with pytest.raises(BadTable, match="column 'c'"):
        declare_table("t", pa.schema([("c", given)]))


@pytest.mark.parametrize("name", ["", "a b", "1a", "_a", "a.b", "a/b", "..", "ä", "a" * 129, "a`", "a\n"])
def test_a_bad_table_name_is_refused(name: str) -> None:
    """A table's name is a folder's name and an SQL name; nothing may need quoting."""
    with pytest.raises(BadTable, match="name"):
        declare_table(name, "a INT")


@pytest.mark.parametrize(
    ("keys", "partition_by", "reason"),
    [
        (["z"], [], "key 'z' is not a column"),
        (["a", "A"], [], "given twice"),
        ("a", [], "as a list"),
        (5, [], "keys are given as a list of names, not as 5"),
        ([], 5, "partition columns are given as a list of names, not as 5"),
        (["l"], [], "cannot be one"),
        ([], ["z"], "partition column 'z' is not a column"),
        ([], ["l"], "cannot be one"),
        ([], ["b"], "is BINARY"),
        ([], ["a", "b", "l"], "cannot be one"),
    ],
)
def test_bad_keys_and_partition_columns_are_refused(keys: list[str], partition_by: list[str], reason: str) -> None:
    """Keys and partition columns are existing columns of a plain type, each named once."""
    with pytest.raises(BadTable, match=reason):
        declare_table("t", "a INT, b BINARY, l ARRAY<INT>", keys=keys, partition_by=partition_by)


def test_not_every_column_can_be_a_partition_column() -> None:
    """A file needs at least one column of its own for other Delta readers."""
    with pytest.raises(BadTable, match="every column"):
        declare_table("t", "a INT, b INT", partition_by=["a", "b"])


def test_a_declaration_survives_the_ledger() -> None:
    """`from_json` gives back what `to_json` took, comments and nullability included."""
    ddl = ", ".join(f"c{number} {text}" for number, text in enumerate(DDL_TYPES))
    table = declare_table("all_types", f"{ddl}, n INT NOT NULL COMMENT 'ä \"quoted\"'", keys=["c5"], partition_by=["c22"], comment="x", in_memory=False)

    again = TableSchema.from_json(table.to_json())

    assert again == table
    assert again.columns.equals(table.columns, check_metadata=True)
