"""Terms: what an SQL expression over one table means, ready to be computed for many rows at once.

In: a type, a canonical text and a function over Arrow columns, from `binder.py`.
Out: `Term`s, and their values for a batch of rows.
Promise: a term that can fail is computed only for the rows whose value is asked for, so `b <> 0 AND a / b > 1` never divides by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Run = Callable[[pa.RecordBatch], Any]  # gives an array as long as the batch, or one scalar for all of it


class Uncomputable(ValueError):
    """A value has no result: overflow, division by zero, text that is no number. The text says which."""


@dataclass(frozen=True, slots=True)
class Term:
    """One typed expression. `text` is canonical SQL; `kind` and `parts` let readers recognise `column = literal` and the like."""

    kind: str
    type: pa.DataType
    text: str
    run: Run
    parts: tuple[Term, ...] = ()
    value: Any = None  # of a literal: its Python value; of a column: its name
    nullable: bool = True
    can_fail: bool = False
    atom: bool = True

    @property
    def inner(self) -> str:
        """Return the text as part of a larger one."""
        return self.text if self.atom else f"({self.text})"

    def columns(self) -> set[str]:
        """Return the columns that are read, in declared spelling."""
        if self.kind == "column":
            return {self.value}
        return set().union(*(part.columns() for part in self.parts if part.kind != "literal"))

    def array(self, rows: pa.RecordBatch) -> pa.Array:
        """Return one value for each row."""
        return broadcast(self.run(rows), rows.num_rows, self.type)


def broadcast(found: Any, rows: int, kind: pa.DataType) -> pa.Array:
    """Return an array of `rows` values from an array or from one scalar."""
    if isinstance(found, pa.Scalar):
        return pa.repeat(found, rows) if found.type == kind else pa.repeat(found, rows).cast(kind)
    if isinstance(found, pa.ChunkedArray):
        return found.combine_chunks()
    return found


def run_where(term: Term, rows: pa.RecordBatch, chosen: Any) -> Any:
    """Return the term's values; those of rows outside `chosen` are of no interest and null where computing them could fail."""
    if not term.can_fail:
        return term.run(rows)
    wanted = broadcast(pc.fill_null(chosen, False), rows.num_rows, pa.bool_())
    if pc.all(wanted).as_py():
        return term.run(rows)
    if not pc.any(wanted).as_py():
        # 1 / 0 would fail even for no rows, being the same for all.
        return pa.scalar(None, term.type)
    some = rows.filter(wanted)
    values = term.array(some)
    return pc.replace_with_mask(pa.nulls(rows.num_rows, term.type), wanted, values)


def strict(
    kind: str,
    type_: pa.DataType,
    text: str,
    parts: Sequence[Term],
    compute: Callable[..., Any],
    *,
    can_fail: bool = False,
    atom: bool = False,
    nullable: bool | None = None,
    needs: Sequence[int] | None = None,
) -> Term:
    """Return a term that is null where a part is null, and computes a part only where those before it are not; `needs` gives their order."""
    order = list(needs if needs is not None else range(len(parts)))

    def run(rows: pa.RecordBatch) -> Any:
        found: dict[int, Any] = {}
        there: Any = None
        for place in order:
            found[place] = parts[place].run(rows) if there is None else run_where(parts[place], rows, there)
            if any(parts[later].can_fail for later in order):
                valid = pc.is_valid(found[place])
                there = valid if there is None else pc.and_(there, valid)
        return _computed(compute, [found[place] for place in range(len(parts))], can_fail=can_fail)

    fails = can_fail or any(part.can_fail for part in parts)
    empty = any(part.nullable for part in parts) if nullable is None else nullable
    return Term(kind, type_, text, run, tuple(parts), None, empty, fails, atom)


def _computed(compute: Callable[..., Any], found: Sequence[Any], *, can_fail: bool) -> Any:
    """Call Arrow; what it refuses is the rows' fault only where an operation can fail."""
    try:
        result = compute(*found)
    except pa.ArrowInvalid as error:
        if not can_fail:
            raise
        raise Uncomputable(str(error).splitlines()[0]) from error
    constant = all(isinstance(one, pa.Scalar) for one in found)
    return result[0] if constant and isinstance(result, pa.Array) else result
