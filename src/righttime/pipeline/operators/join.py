"""Joins of two changing sets: inner, left, and the look-up of the one right row of a key.

In: changes of both sides, and the rows of earlier drains (parts `left` and `right`).
Out: changes of the pairs; a pair's job is the later of the two, its weight the product.
Promise: exact for any mixture of inserts and deletes on both sides, in one job or in many; a null in a key matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.types import DataType

from righttime.pipeline.operators.distinct import net_rows, transitions
from righttime.pipeline.operators.normal import normal
from righttime.pipeline.operators.query import Frame, Query, farthest, hint, names, quoted, type_text
from righttime.pipeline.operators.signed import JOB, WEIGHT, Parts, Signed, State, before, consolidated, rows_of, touched

LEFT, RIGHT = "left", "right"
BOTH = (LEFT, RIGHT)
Remember = Sequence[str]
On = Sequence[tuple[str, str]]
Take = Mapping[str, str]
Types = Mapping[str, DataType]


def join(left: Signed | None, right: Signed | None, state: State, *, on: On, take: Take, remember: Remember = BOTH) -> tuple[Signed | None, Parts]:
    """Return the changes of the pairs with equal keys, and the parts `left` and `right`, as far as they are to be remembered.

    `on`: pairs of left and right column. `take`: new name -> right column; the outcome has the left columns, then these.
    Equal pairs of one job may come as several lines whose weights add up. Small changes are sent to the state, which is scanned and not shuffled.
    """
    with Sides(left, right, state, on, take) as sides:
        return sides.made(sides.matches()), sides.parts(remember)


def left_join(left: Signed | None, right: Signed | None, state: State, *, on: On, take: Take, types: Types) -> tuple[Signed | None, Parts]:
    """Return the changes of the join that keeps left rows without counterpart, with nulls of `types` (by new name), and the parts; as `join` otherwise."""
    with Sides(left, right, state, on, take) as sides:
        # R' = R without one blank row for each key it has. Then L left join R = L with blanks + L join R': what has a counterpart loses its blank.
        found = sides.matches(right=sides.new_without_blanks(types), right_state=sides.old_without_blanks(types))
        every = [text for text in (found, sides.left_with_nulls(types)) if text is not None]
        return sides.made_net(every), sides.parts(BOTH)


def lookup(
    left: Signed | None, right: Signed | None, state: State, *, on: On, take: Take, remember: Remember = BOTH
) -> tuple[Signed | None, Signed | None, Parts]:
    """Return the changes of left rows with what their one right row gives, those of left rows that have none (left columns), and the parts.

    The right side has at most one row for each key at the end of every job; otherwise use `join`. Two shuffles of the size of the changes.
    """
    with Sides(left, right, state, on, take) as sides:
        matches = sides.matches()
        every = [] if sides.left is None else [rows_of(sides.left, sides.columns)]
        if matches is not None:
            every.append(rows_of(f"({matches})", sides.columns, sign="-"))
        found = sides.made_net([matches] if matches is not None else [])
        return found, sides.made_net(every, columns=sides.columns), sides.parts(remember)


def lookup_or_null(
    left: Signed | None, right: Signed | None, state: State, *, on: On, take: Take, types: Types, remember: Remember = BOTH, is_net: bool = False
) -> tuple[Signed | None, Parts]:
    """Return the changes of all left rows with what their one right row gives, nulls of `types` where there is none, and the parts; as `lookup` otherwise.

    With `is_net` no row of the right state was ever taken back: then left rows that meet nothing else need a plain outer join. `types` has the left columns
    too then, none of which may need grouping (`normal.py`): rows have the same values either way.
    """
    with Sides(left, right, state, on, take) as sides:
        made = sides.outer(types) if is_net and right is None else sides.or_null(sides.matches(), types)
        return made, sides.parts(remember)


class Sides:
    """The two sides of one join over one drain, as SQL."""

    def __init__(self, left: Signed | None, right: Signed | None, state: State, on: On, take: Take) -> None:
        self._sql = Query(next(side.frame for side in (left, right) if side is not None)) if left or right else None
        self._on, self._take = on, take
        self.left = self._view(left.frame if left is not None else None)
        self.right = self._view(right.frame if right is not None else None)
        self.left_state, self.right_state = self._view(state.get(LEFT)), self._view(state.get(RIGHT))
        self.reach = farthest(side.reach for side in (left, right) if side is not None)
        self.columns: tuple[str, ...] = left.columns if left is not None else columns_of(state.get(LEFT))
        self.taken = tuple(take.values())
        self.needed = tuple(dict.fromkeys([*(name for _, name in on), *take.values()]))

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._sql is not None:
            self._sql.__exit__(None, None, None)

    def _view(self, frame: Frame | None) -> str | None:
        return None if frame is None or self._sql is None else self._sql.view(frame)

    def run(self, text: str) -> Frame:
        """Return the relation that the text means."""
        assert self._sql is not None
        return self._sql.run(text)

    def made(self, text: str | None) -> Signed | None:
        """Return the outcome of the join as a signed set."""
        return None if text is None else Signed(self.run(text), (*self.columns, *self._take), self.reach)

    def made_net(self, parts: Sequence[str], *, columns: Sequence[str] | None = None) -> Signed | None:
        """Return the sum of the parts, one line for each row and job."""
        if not parts:
            return None
        kept = (*self.columns, *self._take) if columns is None else tuple(columns)
        return Signed(self.run(consolidated(f"({' UNION ALL '.join(parts)})", kept)), kept, self.reach)

    def parts(self, remember: Remember, *, also: Sequence[str] = ()) -> Parts:
        """Return what has to be remembered: all left columns, and the right ones that the join reads."""
        kept = {LEFT: (self.left, self.columns), RIGHT: (self.right, tuple(dict.fromkeys([*self.needed, *also])))}
        return {name: self.run(rows_of(view, columns)) for name, (view, columns) in kept.items() if view is not None and name in remember}

    def matches(self, *, right: str | None = None, right_state: str | None = None) -> str | None:
        """Return dL x (R + dR) + L x dR, of rows with equal keys; in place of the right sides their narrow rows may be given as SQL."""
        new = right if right is not None else self.narrow(self.right)
        old = right_state if right_state is not None else self.narrow(self.right_state, job="CAST(NULL AS BIGINT)")
        rights = [text for text in (old, new) if text is not None]
        terms = []
        if self.left is not None and rights:
            terms.append(self.product(self.left, f"({' UNION ALL '.join(rights)})", sent="l"))
        if new is not None and self.left_state is not None:
            terms.append(self.product(f"({before(self.left_state, self.columns)})", f"({new})", sent="r"))
        return " UNION ALL ".join(terms) if terms else None

    def narrow(self, relation: str | None, *, job: str = JOB, also: Sequence[str] = ()) -> str | None:
        """Return the right rows with what the join reads, keys and taken columns apart: the keys of a blank row are no nulls, but it gives none."""
        if relation is None:
            return None
        keys = [f"{quoted(name)} AS __on_{place}" for place, (_, name) in enumerate(self._on)]
        taken = [f"{quoted(name)} AS __taken_{place}" for place, name in enumerate(self._take.values())]
        return f"SELECT {', '.join([*keys, *taken, *also, f'{job} AS {JOB}', WEIGHT])} FROM {relation}"

    def product(self, left: str, right: str, *, sent: str, where: str = "") -> str:
        """Return the pairs with equal keys that meet the condition; the side `sent` is sent to every executor."""
        equal = " AND ".join(f"l.{quoted(name)} = r.__on_{place}" for place, (name, _) in enumerate(self._on))
        taken = "".join(f", r.__taken_{place} AS {quoted(name)}" for place, name in enumerate(self._take))
        # greatest() skips nulls, so a row of the state takes the job of its partner.
        outcome = f"{names(self.columns, of='l')}{taken}, greatest(l.{JOB}, r.{JOB}) AS {JOB}, l.{WEIGHT} * r.{WEIGHT} AS {WEIGHT}"
        return f"SELECT {hint(sent, self.reach)} {outcome} FROM {left} l JOIN {right} r ON {equal}{where}"

    def outer(self, types: Types) -> Signed | None:
        """Return the left rows with what the right state gives, nulls where it has no row; each line of that state is a row, one for each key at most."""
        if self.left is None or self.right_state is None:
            nothing = self.left_with_nulls(types)
            values = {name: quoted(name) for name in (*self.columns, *self._take)}
            return None if nothing is None else self.made(f"SELECT {_normal(values, types)}, {JOB}, {WEIGHT} FROM ({nothing})")
        equal = " AND ".join(f"l.{quoted(name)} = r.__on_{place}" for place, (name, _) in enumerate(self._on))
        values = {name: f"l.{quoted(name)}" for name in self.columns} | {name: f"r.__taken_{place}" for place, name in enumerate(self._take)}
        right = f"({self.narrow(self.right_state)})"
        columns = f"{_normal(values, types)}, l.{JOB}, l.{WEIGHT}"
        return self.made(f"SELECT {hint('l', self.reach)} {columns} FROM {self.left} l LEFT JOIN {right} r ON {equal}")

    def or_null(self, found: str | None, types: Types) -> Signed | None:
        """Return what was found, and the left rows that were not, with nulls; each left row is found at most once. One shuffle."""
        every = [text for text in (found, self.left_with_nulls(types)) if text is not None]
        if found is not None:
            every.append(f"SELECT {names(self.columns)}{self._nulls(types)}, {JOB}, -{WEIGHT} FROM ({found})")
        return self.made_net(every)

    def left_with_nulls(self, types: Types) -> str | None:
        """Return the left changes as if nothing matched."""
        return None if self.left is None else f"SELECT {names(self.columns)}{self._nulls(types)}, {JOB}, {WEIGHT} FROM {self.left}"

    def _nulls(self, types: Types) -> str:
        return "".join(f", CAST(NULL AS {type_text(types[name])}) AS {quoted(name)}" for name in self._take)

    def new_without_blanks(self, types: Types) -> str | None:
        """Return the right changes, less a blank row for each key that comes and more one for each that goes."""
        if self.right is None:
            return None
        keys = self._keys()
        there = f"(SELECT {names(keys)}, {JOB}, {WEIGHT} FROM {self.right} WHERE {_no_null(keys)})"
        had = None if self.right_state is None else f"(SELECT {names(keys)}, {WEIGHT} FROM {self.right_state} WHERE {_no_null(keys)})"
        changed = transitions(f"({net_rows(there, keys, had, reach=self.reach)})", keys)
        return f"{self.narrow(self.right)} UNION ALL {self._blank(f'({changed})', f'{JOB}, -{WEIGHT}', types)}"

    def old_without_blanks(self, types: Types) -> str | None:
        """Return the right state, less a blank row for each key of the left changes that it has."""
        old = self.narrow(self.right_state, job="CAST(NULL AS BIGINT)")
        if old is None or self.right_state is None or self.left is None:
            return old
        keys = self._keys()
        hit = touched(
            f"(SELECT {names(keys)}, {WEIGHT} FROM {self.right_state} WHERE {_no_null(keys)})", self.left, [(r, le) for le, r in self._on], reach=self.reach
        )
        there = f"(SELECT {names(keys)} FROM ({hit}) GROUP BY {names(keys)} HAVING sum({WEIGHT}) > 0)"
        return f"{old} UNION ALL {self._blank(there, 'CAST(NULL AS BIGINT), -1L', types)}"

    def _keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, name in self._on))

    def _blank(self, keys: str, rest: str, types: Types) -> str:
        """Return right rows with these keys that give nulls."""
        nulls = [f"CAST(NULL AS {type_text(types[name])})" for name in self._take]
        return f"SELECT {', '.join([*(quoted(name) for _, name in self._on), *nulls, rest])} FROM {keys}"


def _normal(values: Mapping[str, str], types: Types) -> str:
    """Return columns given as SQL by name, as grouping would give them; system columns have no type here, and stay as they are."""
    return ", ".join(f"{normal(sql, types[name]) if name in types else sql} AS {quoted(name)}" for name, sql in values.items())


def columns_of(state: Frame | None) -> tuple[str, ...]:
    """Return the columns of the rows that a state part holds."""
    return () if state is None else tuple(name for name in state.columns if name not in (JOB, WEIGHT))


def _no_null(keys: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in keys)
