"""Expressions of a flow, resolved by Spark's analyzer on empty frames.

In: expressions as users write them, the empty frame they are written over, and where they were written.
Out: the types they give.
Promise: what passes gives the same value for the same row at any time; aggregates, windows, subqueries and the like are refused, and texts with a collation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, LongType, NumericType, StructField, StructType

from righttime.errors.flows import BadExpression, TypeClash, UnknownInFlow
from righttime.errors.known import known_names
from righttime.pipeline.jvm import java_class, scala_object
from righttime.pipeline.nodes import Derived, Measure, Origin
from righttime.pipeline.stored_types import is_storable
from righttime.pipeline.translate import quiet

Reads = dict[str, frozenset[str]]

_SUBQUERY = "it has a subquery; use lookup() or join()"
_REFUSED = {
    "AGGREGATE_EXPRESSION": "it has an aggregate; use aggregate()",
    "WINDOW_EXPRESSION": "it has a window; a row may depend on no other row",
    "PLAN_EXPRESSION": _SUBQUERY,
    "GENERATOR": "it gives several rows; use apply() with rows='any'",
    "CURRENT_LIKE": "it depends on the time or the session of the run; a row must always give the same value",
}
# Texts that are times of the run. Where a type stands before one, Spark puts the time in its place before anybody can see it; elsewhere when it runs.
_WORD = r"""(['"])\s*(?:now|today|yesterday|tomorrow)\b[^'"]*\1"""
_CATALYST = "org.apache.spark.sql.catalyst"
_NOW = re.compile(_WORD, re.IGNORECASE)
_NOW_TYPED = re.compile(rf"\b(?:date|timestamp(?:_[nl]tz)?)\s*{_WORD}", re.IGNORECASE)
_STAR = "it takes all columns by *, among which a drain has its own; name those that are meant"


class Expressions:
    """The expressions of one flow, asked about in one child session."""

    def __init__(self, flow: str, child: SparkSession) -> None:
        self._flow = flow
        patterns = java_class(child, f"{_CATALYST}.trees.TreePattern")
        self._patterns = {why: getattr(patterns, name)() for name, why in _REFUSED.items()}
        self._cast, self._order = (scala_object(child, f"{_CATALYST}.expressions.{name}") for name in ("Cast", "RowOrdering"))
        session: Any = child._jsparkSession
        self._parse = session.sessionState().sqlParser().parseExpression
        self._plain, self._timed = (scala_object(child, f"{_CATALYST}.optimizer.{name}") for name in ("ReplaceExpressions", "SpecialDatetimeValues"))
        self._types = java_class(child, "org.apache.spark.sql.types.DataType")
        self._has_collation = java_class(child, "org.apache.spark.sql.util.SchemaUtils").hasNonUTF8BinaryCollation

    def schema(self, frame: DataFrame, columns: Sequence[Derived], origin: Origin) -> tuple[StructType, Reads]:
        """Return the columns that these expressions give, and the columns that each reads."""
        found = {column.name: self._value(frame, column.name, column.expression, origin) for column in columns}
        return StructType([field for field, _ in found.values()]), {name: reads for name, (_, reads) in found.items()}

    def check_condition(self, frame: DataFrame, condition: str, origin: Origin) -> frozenset[str]:
        """Check that this is a condition, and return the columns that it reads."""
        field, reads = self._resolved(frame, "condition", condition, origin)
        if not isinstance(field.dataType, BooleanType):
            raise self._clash(f"the condition {condition!r}", field.dataType, "true or false", origin)
        return reads

    def measures(self, frame: DataFrame, measures: Sequence[Measure], origin: Origin) -> tuple[list[StructField], Reads]:
        """Return the columns that these measures give, and the columns that each reads."""
        found = {measure.name: self._measure(frame, measure, origin) for measure in measures}
        return [field for field, _ in found.values()], {name: reads for name, (_, reads) in found.items()}

    def is_comparable(self, type_: DataType) -> bool:
        """Return whether values of this type can be keys of a join, a group or a row."""
        # An array can be compared if its values can. Of a struct itself the JVM would think that it is a sequence of expressions.
        return bool(self._order.isOrderable(self._java(ArrayType(type_))))

    def can_store(self, given: DataType, wanted: DataType) -> bool:
        """Return whether every value of one type is a value of the other."""
        return bool(self._cast.canUpCast(self._java(given), self._java(wanted)))

    def _measure(self, frame: DataFrame, measure: Measure, origin: Origin) -> tuple[StructField, frozenset[str]]:
        if measure.expression == "*":
            return StructField(measure.name, LongType(), False), frozenset()
        given, reads = self._value(frame, measure.name, measure.expression, origin)
        what = f"{measure.function}({measure.expression})"
        if measure.function in ("sum", "avg") and not isinstance(given.dataType, NumericType):
            raise self._clash(f"the argument of {what}", given.dataType, "a number", origin)
        if not self.is_comparable(given.dataType):
            raise self._clash(f"the argument of {what}", given.dataType, "a type that can be compared", origin)
        text = f"count(distinct {measure.expression})" if measure.function == "count_distinct" else what
        return StructField(measure.name, frame.agg(F.expr(text)).schema[0].dataType, not measure.function.startswith("count")), reads

    def _value(self, frame: DataFrame, name: str, expression: str, origin: Origin) -> tuple[StructField, frozenset[str]]:
        """Return the column that an expression gives, and the columns that it reads."""
        field, reads = self._resolved(frame, name, expression, origin)
        if not is_storable(field.dataType):
            raise self._clash(f"the expression {expression!r}", field.dataType, "a type that columns of tables can have", origin)
        return field, reads

    def _resolved(self, frame: DataFrame, name: str, expression: str, origin: Origin) -> tuple[StructField, frozenset[str]]:
        try:
            with quiet():
                parsed = self._parse(f"({expression}\n)")  # as drains write it: a name behind it would be its alias here, and there every row would fail
                if parsed.containsPattern(self._patterns[_SUBQUERY]):
                    raise BadExpression(flow=self._flow, origin=origin, expression=expression, reason=_SUBQUERY)  # Spark would look for its tables first
                found = frame.select(F.expr(expression).alias(name))
        except PySparkException as error:
            raise self._refusal(error, frame, expression, origin) from error
        plan = found._jdf.queryExecution().analyzed()
        reasons = [why for why, pattern in self._patterns.items() if plan.containsPattern(pattern)]
        if _NOW_TYPED.search(expression) or (_NOW.search(expression) and self._is_timed(plan)):
            reasons.append(_REFUSED["CURRENT_LIKE"])
        if "*" in expression and self._takes_all(frame, expression):
            reasons.append(_STAR)
        if not plan.deterministic():
            reasons.append("it gives another value each time; a row must always give the same value")
        field = found.schema[0]
        if self._has_collation(self._java(field.dataType)):
            # Kept rows have none, so that a later drain would not find them again by it.
            reasons.append("it gives a text with a collation, which kept rows do not have; use COLLATE within a comparison, or lower()")
        if reasons:
            raise BadExpression(flow=self._flow, origin=origin, expression=expression, reason=reasons[0])
        references = plan.references().toSeq().iterator()
        names = iter(lambda: references.next().name() if references.hasNext() else "", "")
        # Spark calls a column as the expression does, in whatever case; everybody else asks for it by its own name.
        spelled = {name.lower(): name for name in frame.columns}
        return field, frozenset(spelled[name.lower()] for name in names)

    def _is_timed(self, plan: Any) -> bool:
        """Return whether Spark would put times of the run in the place of texts, cast by the user or by itself."""
        plain = self._plain.apply(plan)
        return not self._timed.apply(plain).fastEquals(plain)

    def _takes_all(self, frame: DataFrame, expression: str) -> bool:
        """Return whether an expression reads also a column that it cannot know."""
        plan = frame.withColumn("__more", F.lit(0)).select(F.expr(expression).alias("it"))._jdf.queryExecution().analyzed()
        references = plan.references().toSeq().iterator()
        return "__more" in iter(lambda: references.next().name() if references.hasNext() else "", "")

    def _refusal(self, error: PySparkException, frame: DataFrame, expression: str, origin: Origin) -> Exception:
        parameters = error.getMessageParameters() or {}
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN") and "objectName" in parameters:
            name = parameters["objectName"].replace("`", "")
            return UnknownInFlow(flow=self._flow, origin=origin, what="column", name=name, known=known_names(name, frame.columns))
        reason = " ".join(str(error).strip().split("\n\n== SQL", 1)[0].split(";", 1)[0].split())
        return BadExpression(flow=self._flow, origin=origin, expression=expression, reason=reason)

    def _clash(self, what: str, found: DataType, expected: str, origin: Origin) -> TypeClash:
        return TypeClash(flow=self._flow, origin=origin, what=what, found=found.simpleString(), expected=expected)

    def _java(self, type_: DataType) -> Any:
        return self._types.fromJson(type_.json())
