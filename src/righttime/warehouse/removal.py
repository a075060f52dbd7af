"""What is left of files when some of their rows leave, written to new files.

In: positions of rows that leave, by file.
Out: new synced files, and the names of those they replace.
Promise: every other row is in exactly one new file, in its partition; the old files stay as they are; memory holds the rows of one new file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from righttime.warehouse.files import FILE_ROWS_MAX, TableFiles
from righttime.warehouse.scan import Footers, read_batches
from righttime.warehouse.store import DataFile, Positions, Removal


def rewrite(files: TableFiles, columns: pa.Schema, footers: Footers, gone: Mapping[str, Positions]) -> Removal:
    """Write what is left of each file that loses a row; after an error none of the new files is left."""
    leaving = {path: np.unique(positions) for path, positions in gone.items() if len(positions)}
    left = {path: footers.rows(path) - len(positions) for path, positions in leaving.items()}
    for path, positions in leaving.items():
        assert positions[0] >= 0 and positions[-1] < left[path] + len(positions), f"{path} has no row at one of these positions"
    written: list[DataFile] = []
    try:
        for paths in _together(left):
            written.extend(files.write(_rows_left(paths, columns, footers, leaving)))
    except BaseException:
        files.remove(written)
        raise
    return Removal(written, list(leaving), sum(map(len, leaving.values())), sum(file.rows for file in written))


def _together(left: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield files whose rows fit one new file: large ones stay apart, the many small ones of frequent commits become few."""
    waiting: list[str] = []
    rows = 0
    for path, count in left.items():
        if waiting and rows + count > FILE_ROWS_MAX:
            yield waiting
            waiting, rows = [], 0
        if count:
            waiting.append(path)
            rows += count
    if waiting:
        yield waiting


def _rows_left(paths: Sequence[str], columns: pa.Schema, footers: Footers, leaving: Mapping[str, Positions]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        positions = leaving[path]
        for first, batch in read_batches(path, columns, footers.groups(path)):
            start, stop = np.searchsorted(positions, [first, first + batch.num_rows])
            if start == stop:
                yield batch
                continue
            stays = np.ones(batch.num_rows, dtype=bool)
            stays[positions[start:stop] - first] = False
            yield batch.filter(pa.array(stays))
