"""Rows of stored files that a relation leaves out, by their position in the file.

In: positions of the rows to hide, by file.
Out: a condition that is true for all other rows of these files.
Promise: exactly the named rows fail it, however Spark splits and filters the files; most rows cost one look into a small bitmap, and nothing is joined.
"""

import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from righttime.errors import WarehouseDamaged
from righttime.pipeline.jvm import java_class

Hidden = Mapping[str, npt.NDArray[np.int64]]
Longs = npt.NDArray[np.int64]

_BITS_PER_ROW, _BITS_MIN, _BITS_MAX = 32, 2**12, 2**24
_SIZE_FACTOR = 1_000_003  # spreads files over the bitmap; small enough that no product overflows
_FILE_FACTOR = 7_919  # the same for the buckets
_FILE_ROWS_MAX = 2**31
_COUNT_BITS = 16
_PLAIN = re.compile(r"[\w./=-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HiddenFile:
    """One file with hidden rows; `number` is what Spark's crc32 says of its address, and no other file of the relation has it."""

    path: str
    number: int
    size: int
    positions: Longs


def hidden_files(child: SparkSession, hidden: Hidden) -> Iterator[list[HiddenFile]]:
    """Yield the files in parts in which every file has a number of its own: in practice there is one part."""
    folders: dict[str, str] = {}
    left = [_hidden_file(child, path, positions, folders) for path, positions in hidden.items()]
    while left:
        part = {file.number: file for file in left}
        yield list(part.values())
        left = [file for file in left if part[file.number] is not file]


def _hidden_file(child: SparkSession, path: str, positions: Longs, folders: dict[str, str]) -> HiddenFile:
    folder, _, name = path.rpartition("/")
    if folder not in folders:
        folders[folder] = _address(child, folder)
    address = f"{folders[folder]}/{name if _PLAIN.fullmatch(name) else _address(child, '/' + name).rpartition('/')[2]}"
    assert positions.min() >= 0 and positions.max() < _FILE_ROWS_MAX, f"{path} has no such row"
    try:
        size = Path(path).stat().st_size
    except FileNotFoundError as error:
        raise WarehouseDamaged(path=path, reason="a data file is missing") from error
    return HiddenFile(path, zlib.crc32(address.encode()), size, positions)


def _address(child: SparkSession, path: str) -> str:
    """Return a path as Spark's `_metadata.file_path` spells it; what is encoded, and how, only the JVM knows."""
    if _PLAIN.fullmatch(path):
        return f"file:{path}"
    return str(java_class(child, "org.apache.hadoop.fs.Path")(f"file:{path}").toUri().toString())


def is_shown(child: SparkSession, files: list[HiddenFile]) -> Column:
    """Return the condition that only the hidden rows of these files do not meet; the relation must read no other file."""
    row, number = F.col("_metadata.row_index"), F.crc32(F.col("_metadata.file_path").cast("binary"))
    # The steps cost more and more and concern fewer and fewer rows: a bit for all, a bucket for some, a search for hardly any.
    place = F.get(_literal(child, _buckets(files)), _slot(number * F.lit(_FILE_FACTOR) + row, _bucket_count(files)))
    count = place.bitwiseAND(F.lit(2**_COUNT_BITS - 1)).cast("int")
    bucket = F.slice(_literal(child, _sorted_keys(files)), F.shiftright(place, _COUNT_BITS).cast("int") + F.lit(1), count)
    found = (count > 0) & F.array_contains(bucket, number * F.lit(_FILE_ROWS_MAX) + row)
    return ~F.when(_is_marked(child, files, row), found).otherwise(F.lit(False))


def _is_marked(child: SparkSession, files: list[HiddenFile], row: Column) -> Column:
    bits = np.zeros(min(_BITS_MAX, max(_BITS_MIN, _power_of_two(_BITS_PER_ROW * _rows(files)))), dtype=bool)
    for file in files:
        bits[(file.positions + file.size * _SIZE_FACTOR) & (len(bits) - 1)] = True
    words = _literal(child, np.packbits(bits, bitorder="little").view("<i8"))
    bit = (row + F.col("_metadata.file_size") * F.lit(_SIZE_FACTOR)).bitwiseAND(F.lit(len(bits) - 1))
    return F.getbit(F.get(words, F.shiftright(bit, 6).cast("int")), bit.bitwiseAND(F.lit(63)).cast("int")) == F.lit(1)


def _slot(mixed: Column, slots: int) -> Column:
    return mixed.bitwiseAND(F.lit(slots - 1)).cast("int")


def _rows(files: list[HiddenFile]) -> int:
    return sum(len(file.positions) for file in files)


def _bucket_count(files: list[HiddenFile]) -> int:
    return _power_of_two(2 * _rows(files))


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


def _bucket_of_each(files: list[HiddenFile]) -> Longs:
    return np.concatenate([file.number * _FILE_FACTOR + file.positions for file in files]) & (_bucket_count(files) - 1)


def _buckets(files: list[HiddenFile]) -> Longs:
    """Return for each bucket where its keys begin, and in the lowest bits how many there are."""
    counts = np.bincount(_bucket_of_each(files), minlength=_bucket_count(files))
    assert counts.max() < 2**_COUNT_BITS
    return ((np.cumsum(counts) - counts) << _COUNT_BITS) | counts


def _sorted_keys(files: list[HiddenFile]) -> Longs:
    keys = np.concatenate([file.number * _FILE_ROWS_MAX + file.positions for file in files])
    return keys[np.argsort(_bucket_of_each(files), kind="stable")]


def _literal(child: SparkSession, values: Longs) -> Column:
    """Return an array of longs as one literal; through a mapped file, because py4j takes seconds for a million numbers."""
    gateway: Any = child.sparkContext._gateway
    copied = gateway.new_array(gateway.jvm.long, len(values))
    with tempfile.NamedTemporaryFile(prefix="righttime-hidden-") as file:
        file.write(values.astype(">i8").tobytes())
        file.flush()
        channel = java_class(child, "java.io.RandomAccessFile")(file.name, "r").getChannel()
        try:
            channel.map(java_class(child, "java.nio.channels.FileChannel").MapMode.READ_ONLY, 0, 8 * len(values)).asLongBuffer().get(copied)
        finally:
            channel.close()
    types = java_class(child, "org.apache.spark.sql.types.DataTypes")
    array = java_class(child, "org.apache.spark.sql.catalyst.expressions.UnsafeArrayData").fromPrimitiveArray(copied)
    literal = java_class(child, "org.apache.spark.sql.catalyst.expressions.Literal")(array, types.createArrayType(types.LongType, False))
    return ClassicColumn(java_class(child, "org.apache.spark.sql.classic.ExpressionUtils").column(literal))
