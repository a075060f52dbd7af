"""Values as a GROUP BY gives them: zeros without a sign, entries of maps in order.

In: columns of rows that are grouped in one drain and not in another.
Out: the same as SQL that gives what grouping would, where that can be said of a column by itself.
Promise: a row goes with the same values with which it came, whichever way it took through a step.
"""

from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType


def normal(column: str, kind: DataType) -> str:
    """Return the column with the values that grouping would give it; `needs_grouping` tells of types for which it cannot be said."""
    if not isinstance(kind, FloatType | DoubleType):
        return column
    zero = f"CAST(0 AS {kind.simpleString()})"
    return f"if({column} = {zero}, {zero}, {column})"


def needs_grouping(kind: DataType) -> bool:
    """Return whether grouping may change values inside of a value of this type."""
    return not isinstance(kind, FloatType | DoubleType) and _has_forms(kind)


def _has_forms(kind: DataType) -> bool:
    match kind:
        case ArrayType():
            return _has_forms(kind.elementType)
        case StructType():
            return any(_has_forms(field.dataType) for field in kind)
        case _:
            return isinstance(kind, MapType | FloatType | DoubleType)
