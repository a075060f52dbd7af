"""Choosing terms: CASE, COALESCE, NULLIF.

In: conditions and alternatives of one type.
Out: terms.
Promise: an alternative is computed only for the rows that take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from righttime.changes.terms import Term, run_where


def case_of(tests: Sequence[Term], values: Sequence[Term], *, has_else: bool) -> Term:
    """Return `CASE WHEN test THEN value … ELSE value END`; the last value is that of ELSE."""
    branches = " ".join(f"WHEN {test.text} THEN {value.text}" for test, value in zip(tests, values, strict=False))
    text = f"CASE {branches}{f' ELSE {values[-1].text}' if has_else else ''} END"
    type_ = values[-1].type

    def run(rows: pa.RecordBatch) -> Any:
        left: Any = pa.scalar(True)
        chosen: list[Any] = []
        for test in tests:
            taken = pc.and_(left, pc.fill_null(run_where(test, rows, left), False))
            left = pc.and_not(left, taken)
            chosen.append(taken)
        result = run_where(values[-1], rows, left)
        for taken, value in zip(reversed(chosen), reversed(values[:-1]), strict=True):
            result = pc.if_else(taken, run_where(value, rows, taken), result)
        return result

    parts = (*tests, *values)
    return Term("case", type_, text, run, parts, None, any(value.nullable for value in values), any(part.can_fail for part in parts))


def coalesce_of(values: Sequence[Term]) -> Term:
    """Return `coalesce(values)`: the first that is not null."""

    def run(rows: pa.RecordBatch) -> Any:
        result = values[0].run(rows)
        for value in values[1:]:
            missing = pc.is_null(result)
            result = pc.if_else(missing, run_where(value, rows, missing), result)
        return result

    text = f"coalesce({', '.join(value.text for value in values)})"
    return Term("coalesce", values[0].type, text, run, tuple(values), None, all(value.nullable for value in values), any(value.can_fail for value in values))


def nullif_of(left: Term, right: Term, same: Term) -> Term:
    """Return `nullif(left, right)`: null where `same`, their comparison, is true."""

    def run(rows: pa.RecordBatch) -> Any:
        return pc.if_else(pc.fill_null(same.run(rows), False), pa.scalar(None, left.type), left.run(rows))

    return Term("nullif", left.type, f"nullif({left.text}, {right.text})", run, (left, right), None, True, same.can_fail)
