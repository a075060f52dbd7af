"""Reasons of Spark as users read them."""

import pytest
from py4j.protocol import Py4JError

from righttime.errors import BadExpression, SqlFailed, StepFailed, TooManyDeadLetters
from righttime.errors.spark_words import in_short
from righttime.pipeline.careful import reason_of
from righttime.pipeline.translate import translated

ANSI = 'If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error.'
SAID = {
    f"[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. {ANSI} SQLSTATE: 22012": (
        "division by zero; try_divide gives null instead"
    ),
    '[CAST_INVALID_INPUT] The value \'abc\' of the type "STRING" cannot be cast to "INT" because it is malformed. Correct the value as per the syntax, '
    "or change its target type. Use `try_cast` to tolerate malformed input and return NULL instead. SQLSTATE: 22018": (
        "the value 'abc' cannot be cast to INT; try_cast gives null instead"
    ),
    '[CAST_OVERFLOW] The value 2000 of the type "INT" cannot be cast to "TINYINT" due to an overflow. Use `try_cast` to tolerate overflow and return NULL '
    "instead. SQLSTATE: 22003": "the value 2000 cannot be cast to TINYINT; try_cast gives null instead",
    '[CAST_OVERFLOW] The value 18446744073709551614BD of the type "DECIMAL(38,0)" cannot be cast to "BIGINT" due to an overflow. Use `try_cast` to tolerate '
    "overflow and return NULL instead. SQLSTATE: 22003": "the value 18446744073709551614 cannot be cast to BIGINT; try_cast gives null instead",
    '[CAST_OVERFLOW] The value 1.0E20D of the type "DOUBLE" cannot be cast to "INT" due to an overflow. SQLSTATE: 22003': (
        "the value 1.0E20 cannot be cast to INT"
    ),
    f"[ARITHMETIC_OVERFLOW] overflow. Use 'try_multiply' to tolerate overflow and return NULL instead. {ANSI} SQLSTATE: 22003": (
        "overflow; try_multiply gives null instead"
    ),
    "[INVALID_ARRAY_INDEX] The index 5 is out of bounds. The array has 1 elements. Use the SQL function `get()` to tolerate accessing element at invalid index "
    "and return NULL instead. SQLSTATE: 22003": "the index 5 is out of bounds. The array has 1 elements; get gives null instead",
    '[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] 200000 cannot be represented as Decimal(4, 2). If necessary set "spark.sql.ansi.enabled" to "false" to '
    "bypass this error, and return NULL instead. SQLSTATE: 22003": "200000 cannot be represented as Decimal(4, 2)",
    '[UNSUPPORTED_DATATYPE] Unsupported data type "NOSUCH". SQLSTATE: 0A000 == SQL (line 1, position 11) == cast(t AS NOSUCH) ^^^^^^': (
        'unsupported data type "NOSUCH"'
    ),
    "[PARSE_SYNTAX_ERROR] Syntax error at or near end of input. SQLSTATE: 42601 (line 1, pos 3)": "syntax error at or near end of input (line 1, position 3)",
    "[UNRESOLVED_ROUTINE] Cannot resolve routine `foo` on search path [`system`.`builtin`, `system`.`session`, `spark_catalog`.`default`]. SQLSTATE: 42883": (
        "there is no function foo"
    ),
    '[DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES] Cannot resolve "(a + m)" due to data type mismatch: the left and right operands of the binary operator have '
    'incompatible types ("INT" and "MAP<STRING, INT>"). SQLSTATE: 42K09': (
        'the left and right operands of the binary operator have incompatible types ("INT" and "MAP<STRING, INT>")'
    ),
    "[WRONG_NUM_ARGS.WITHOUT_SUGGESTION] The `length` requires 1 parameters but the actual number is 2. Please, refer to "
    "'https://spark.apache.org/docs/latest/sql-ref-functions.html' for a fix. SQLSTATE: 42605": (
        "the `length` requires 1 parameters but the actual number is 2"
    ),
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `nope` cannot be resolved. Did you mean one of the following? "
    "[`id`, `x`]. SQLSTATE: 42703": "there is no column nope. Did you mean one of the following? [`id`, `x`]",
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): "
    "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n\tat org.apache.spark.sql.Errors.divide(Errors.scala:9)": (
        "division by zero"
    ),
    "java.lang.IllegalStateException: no luck": "no luck",
}
OTHERS = [
    "it has an aggregate; use aggregate()",
    "ValueError: The rows of [AB] are odd.",
    "pandas.errors.ParserError: No luck",
    "the look-up has no row with this key",
    "",
]


@pytest.mark.parametrize(("said", "short"), SAID.items(), ids=range(len(SAID)))
def test_what_spark_says_is_shortened(said: str, short: str) -> None:
    """No code, class, trace or setting is left, and what is short stays as it is."""
    assert in_short(said) == short
    assert in_short(short) == short


@pytest.mark.parametrize("reason", OTHERS)
def test_other_reasons_stay_as_they_are(reason: str) -> None:
    """Reasons of ours and of users' functions are not Spark's."""
    assert in_short(reason) == reason


def test_errors_of_flows_and_queries_give_the_short_reason() -> None:
    """The user's expression and line are in the message; the code of Spark's condition is in the context where somebody may need it."""
    said, short = next(iter(SAID.items()))
    flow = {"flow": "sales", "origin": "sales.py:3", "reason": said}

    assert str(BadExpression(expression="a / 0", **flow)) == (
        f"sales.py:3: the expression 'a / 0' cannot be used: {short}. Correct it in flow 'sales'; no row was moved."
    )
    assert f"failed: {short}. Nothing was published" in str(StepFailed(**flow))
    assert f"the last at sales.py:3: {short}. Nothing" in str(TooManyDeadLetters(bound=5, jobs="1", **flow))
    failed = SqlFailed(tables="sale", reason=said, condition="DIVIDE_BY_ZERO")
    assert (str(failed), failed.context["condition"]) == (f"Spark could not run the query over sale: {short}. Correct the query.", "DIVIDE_BY_ZERO")


def _of_call(number: int, *, awaited: bool) -> Py4JError:
    """An error as Spark raises it for `parse_json`, `from_json` and others, of which PySpark knows no class of its own."""
    wait = "org.apache.spark.SparkException: Exception thrown in awaitResult: \n\tat org.apache.spark.Wait.get(Wait.scala:7)\nCaused by: " if awaited else ""
    told = "org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING] Malformed records are detected: bad.\nParse Mode: FAILFAST.  SQLSTATE: 22023"
    trace = "\n\tat com.fasterxml.jackson.Parser.go(Parser.java:1)\nCaused by: com.fasterxml.jackson.JsonParseException: Unrecognized token"
    return Py4JError(f"An error occurred while calling o{number}.getResult.\n: {wait}{told}{trace}")


@pytest.mark.parametrize("awaited", [True, False])
def test_a_call_to_java_that_fails_has_the_same_reason_each_time(awaited: bool) -> None:
    """What went wrong, not the call, which has a number: a row that fails when it goes is the dead letter that came."""
    reasons = {reason_of(_of_call(number, awaited=awaited)) for number in (392, 641)}

    assert {in_short(reason) for reason in reasons} == {"malformed records are detected: bad. Parse Mode: FAILFAST"}
    assert len(reasons) == 1
    with pytest.raises(SqlFailed) as failed, translated(["sale"]):
        raise _of_call(7, awaited=awaited)
    assert failed.value.context["reason"] == "malformed records are detected: bad. Parse Mode: FAILFAST"
