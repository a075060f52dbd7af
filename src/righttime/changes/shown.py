"""Arrow rows as Python's, for people to look at: also such as Python has no words for.

In: Arrow rows.
Out: dictionaries.
Promise: a text that is none, as Spark makes of any bytes, is shown with its bytes escaped; all other values are what they are.
"""

from typing import Any

import pyarrow as pa


def shown_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return a few rows, each as a dictionary."""
    return [{name: _shown(column[place]) for name, column in zip(rows.column_names, rows.columns, strict=True)} for place in range(rows.num_rows)]


def _shown(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return error.object.decode(errors="backslashreplace")
