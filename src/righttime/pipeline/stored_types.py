"""Which types of a step may go into a column of another type.

In: the type that a step gives, and that of the column of a table which is there already.
Out: whether it can be a column at all, whether what is stored means the same, and where Spark has to cast it.
Promise: pure; what passes is stored as a CAST of Spark SQL would store it, never as Arrow would: the two differ in what a number of a time is, in how values
are written as text, and in whether the fields of a struct are told by place or by name.
"""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_SIMPLE = (BooleanType, NumericType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType)
# Spark would cast these, and each of them says something that nobody has declared: seconds or microseconds, and which encoding.
_OTHER_MEANING = ((LongType, TimestampType), (TimestampType, LongType), (BinaryType, StringType))


def is_storable(kind: DataType) -> bool:
    """Return whether a table can have a column of this type: no interval, time of day, variant, nor NULL without a type.

    Steps keep rows in the same files as tables do, and these would come back as something else: `INTERVAL '1' DAY` as one of days to seconds.
    """
    match kind:
        case StructType():
            return all(is_storable(field.dataType) for field in kind)
        case ArrayType():
            return is_storable(kind.elementType)
        case MapType():
            return is_storable(kind.keyType) and is_storable(kind.valueType)
        case _:
            return isinstance(kind, _SIMPLE)


def means_the_same(given: DataType, wanted: DataType) -> bool:
    """Return whether a value that Spark can cast without loss is still the same thing: fields of structs have the same names in the same places."""
    match given, wanted:
        case StructType(), StructType():
            same = [one.name.lower() for one in given] == [other.name.lower() for other in wanted]
            return same and all(means_the_same(one.dataType, other.dataType) for one, other in zip(given, wanted, strict=True))
        case ArrayType(), ArrayType():
            return means_the_same(given.elementType, wanted.elementType)
        case MapType(), MapType():
            return means_the_same(given.keyType, wanted.keyType) and means_the_same(given.valueType, wanted.valueType)
        case _:
            return not any(isinstance(given, one) and isinstance(wanted, other) for one, other in _OTHER_MEANING)


def keeps_apart(given: DataType, wanted: DataType) -> bool:
    """Return whether two different values stay different, so that a key is still one: not if whole numbers become floating-point ones."""
    return not (isinstance(given, IntegralType) and _is_floating(wanted))


def type_of_sum(kind: DataType) -> DataType:
    """Return the type of the sum of such values, as Spark has it; what is no number stays as it is."""
    match kind:
        case DecimalType():
            return DecimalType(min(38, kind.precision + 10), kind.scale)
        case IntegralType():
            return LongType()
        case FloatType():
            return DoubleType()
        case _:
            return kind


def needs_cast(given: DataType, wanted: DataType, *, is_total: bool) -> bool:
    """Return whether Spark has to cast a column; of a total, whose type is wider, only if it becomes a floating-point number: else it fits or fails."""
    if is_total:
        return _is_floating(wanted) and not _is_floating(given)
    return given.simpleString() != wanted.simpleString()


def _is_floating(kind: DataType) -> bool:
    return isinstance(kind, FloatType | DoubleType)
