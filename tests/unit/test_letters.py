"""The dead letters of a flow, as a book."""

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import righttime as rt
from righttime.errors.spark_words import in_short
from righttime.flows.engine import Drained
from righttime.flows.letters import LetterBook, letters_kept, letters_table
from righttime.pipeline.again import image_of
from righttime.pipeline.careful import reason_of
from righttime.pipeline.execute import DrainResult, Unmet
from righttime.pipeline.failed import DEAD_LETTERS
from righttime.pipeline.results import row_text
from tests.support.flow_stage import Stage
from tests.support.plain_flow import run_plain

SAID = "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. SQLSTATE: 22012"
SHORT = "division by zero; try_divide gives null instead"
COLUMNS = ["step", "origin", "reason", "job", "weight", "row"]


def failed(*rows: tuple[Any, ...]) -> pa.Table:
    """Return rows that failed in a drain: job, weight, row."""
    return pa.Table.from_pylist([dict(zip(COLUMNS, ("02_derive", "sales.py:3", SAID, *row), strict=True)) for row in rows])


def test_the_row_of_a_letter_is_json_whatever_is_in_it() -> None:
    """As Spark writes the rows of steps: what JSON has no words for is a text, and bytes are base64."""

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    row = {"d": math.nan, "more": [{"f": -math.inf}, math.inf, 1.5], "b": b"\x01\xff", "c": Decimal("1.50"), "n": None, "t": "ä"}
    found = json.loads(row_text(row), parse_constant=refuse)
    assert found == {"d": "NaN", "more": [{"f": "-Infinity"}, "Infinity", 1.5], "b": "Af8=", "c": "1.50", "n": None, "t": "ä"}


def test_a_letter_has_the_reason_in_short() -> None:
    """In the table that users read, and in the state from which the flow goes on."""
    lines, kept = LetterBook("sales", {}, letters_max=5).take(failed((1, 1, "{}")), {}, {})

    assert [line["reason"] for line in lines[1].to_pylist()] == [SHORT]
    assert kept["reason"].to_pylist() == [SHORT]


def test_a_letter_that_was_kept_with_a_long_reason_goes_with_its_row() -> None:
    """What a release before this one wrote has the id of its long reason, in the table too: the letter is the same, and ends once."""
    before = pa.Table.from_pylist([{"step": "02_derive", "line": "sales.py:3", "reason": SAID, "row": "{}", "_job": 1, "_w": 1}])
    book = LetterBook("sales", {}, letters_max=5)
    book.load(before)
    (shown,) = book._letters

    lines, kept = book.take(failed((2, 1, "{}"), (3, -1, "{}"), (3, -1, "{}"), (4, 1, "{}")), {}, {})

    assert [(line["_op"], line["id"], line["times"]) for job in (2, 3) for line in lines[job].to_pylist()] == [("update", shown, 2), ("delete", shown, 2)]
    (again,) = lines[4].to_pylist()
    assert again["_op"] == "insert" and again["id"] != shown and again["reason"] == SHORT
    reopened = LetterBook("sales", {}, letters_max=5)
    reopened.load(pa.concat_tables([before, kept.select(before.column_names)], promote_options="permissive"))
    assert list(reopened._letters) == [again["id"]]


def test_a_row_that_a_table_cannot_hold_is_mended_within_its_drain() -> None:
    """The next line of its key ends the letter, also in the drain that brought it: after that nobody would look for it again."""
    book = LetterBook("sales", {"into_t": ["id"]}, letters_max=5)
    bad = {"step": "into_t", "origin": "sales.py:3", "reason": "a null", "job": 1, "weight": 1, "row": '{"id": 1, "c": null}'}
    mended = pa.table({"_job": [1, 2], "_op": ["delete", "update"], "id": [1, 1], "c": [None, 3]})

    lines, kept = book.take(pa.Table.from_pylist([bad]), {"t": mended}, {})

    assert [(job, line["_op"]) for job, table in lines.items() for line in table.to_pylist()] == [(1, "insert"), (2, "delete")]
    assert (len(book), sum(kept["_w"].to_pylist())) == (0, 0)


def test_a_long_reason_is_the_same_whichever_task_tells_it() -> None:
    """The row comes in one task and goes in another: a reason that was cut with the task's number in it would be another letter's."""
    value = f'The value \'{"x" * 600}\' of the type "STRING" cannot be cast to "INT" because it is malformed.'
    lost = "Job aborted due to stage failure: Task 0 in stage 7.0 failed 1 times, most recent failure: Lost task 0.0 in stage 7.0 (TID {}) (host): "
    said = f"{lost}org.apache.spark.SparkRuntimeException: [CAST_INVALID_INPUT] {value}"

    came, went = (in_short(reason_of(RuntimeError(said.format(task)))) for task in (9, 12345))

    assert came == went and came.startswith("the value 'xxx") and len(came) <= 500


def test_a_reason_can_be_stored_wherever_its_table_is() -> None:
    """It may quote the value that failed, and no PostgreSQL holds a U+0000."""
    assert reason_of(RuntimeError("'a\0b' is no number")) == "'a\\u0000b' is no number"


def test_expectations_with_one_name_are_counted_together() -> None:
    """Two branches may expect the same of their rows; neither count is lost."""
    unmet = (Unmet("02_expect", "positive", 1, 2), Unmet("04_expect", "positive", 1, 3), Unmet("04_expect", "positive", 2, 1))

    drained = Drained(DrainResult({}, {}, failed(), unmet), "sales_dead_letters", {})

    assert [drained.unmet(job) for job in (1, 2, 3)] == [{"positive": 5}, {"positive": 1}, {}]


def test_letters_with_an_image_are_tried_again_and_others_are_not() -> None:
    """Chosen ones or all; what fails again is the letter that it was, and what passes is gone, in the state, too."""
    came = [
        {"step": "02_apply", "origin": "f.py:1", "reason": "no rate", "job": 1, "weight": 2, "row": '{"k":1}', "image": image(1)},
        {"step": "02_apply", "origin": "f.py:1", "reason": "no rate", "job": 1, "weight": 1, "row": '{"k":2}', "image": image(2)},
        {"step": "03_lookup", "origin": "f.py:2", "reason": "not found", "job": 1, "weight": 1, "row": '{"k":3}', "image": None},
    ]
    book = LetterBook("sales", {}, letters_max=10)
    lines, kept = book.take(pa.Table.from_pylist(came, DEAD_LETTERS), {}, {})
    again = LetterBook("sales", {}, letters_max=10)
    again.load(kept)
    again.load_images(book.kept_images())
    one = next(line["id"] for line in lines[1].to_pylist() if line["row"] == '{"k":1}')

    retried = again.again([one, "nobody"], job=2)

    assert retried.rows["02_apply"].to_pylist() == [{"k": 1, "_job": 2, "_w": 2}]
    assert retried.unknown == ("nobody",)
    assert sorted(row["k"] for row in again.again(None, job=2).rows["02_apply"].to_pylist()) == [1, 2]
    fails = pa.Table.from_pylist([{**came[0], "job": 2}], DEAD_LETTERS)
    assert (retried.passed(fails), retried.passed(fails.slice(0, 0))) == (0, 2)
    assert again.take(retried.with_them(fails), {}, {})[0] == {}, "the same as before"
    again.take(retried.with_them(fails.slice(0, 0)), {}, {})
    assert len(again) == 2 and [row["k"] for row in again.again(None, job=3).rows["02_apply"].to_pylist()] == [2]


def test_all_rows_that_pass_are_counted_though_they_had_failed_for_different_reasons() -> None:
    """Equal rows of one step are one image, and what was wrong with them may have changed from one to the other."""
    about = {"step": "02_apply", "origin": "f.py:1", "weight": 1, "row": '{"k":1}', "image": image(1)}
    book = LetterBook("sales", {}, letters_max=10)
    book.take(pa.Table.from_pylist([{**about, "job": 1, "reason": "no rate"}, {**about, "job": 2, "reason": "no file"}], DEAD_LETTERS), {}, {})
    assert book.again(None, job=3).passed(DEAD_LETTERS.empty_table()) == 2


def test_a_letter_has_the_job_in_which_it_came_after_a_restart_too() -> None:
    """Not the last one that changed it, nor the one up to which its state was summed up."""
    book = LetterBook("sales", {}, letters_max=5)
    _, kept = book.take(failed((2, 1, "{}"), (5, 1, "{}")), {}, {})
    firsts = book.kept_firsts()
    reopened = LetterBook("sales", {}, letters_max=5)
    reopened.load(kept.set_column(kept.schema.get_field_index("_job"), "_job", pa.array([9] * len(kept))))
    reopened.load_firsts(firsts)

    lines, _ = reopened.take(failed((11, -1, "{}"), (12, -1, "{}"), (13, 1, "{}")), {}, {})

    assert [(line["_op"], line["times"], line["job"]) for line in lines[11].to_pylist()] == [("update", 1, 2)]
    net = pa.concat_tables([firsts, reopened.kept_firsts()]).group_by("first").aggregate([("_w", "sum")]).to_pylist()
    assert net == [{"first": 2, "_w_sum": 0}, {"first": 13, "_w_sum": 1}], "summed up, it is no more than the letters"


def test_a_letter_goes_with_its_row_though_the_row_fails_for_another_reason_then() -> None:
    """What a function raises may have an address in it, or the time: the letter stayed, and one with `times` -1 came beside it."""
    about = {"step": "02_apply", "origin": "f.py:1", "image": image(1)}
    rows = [(1, 1, '{"k":1}', "0x1"), (1, 1, '{"k":2}', "0x2"), (2, -1, '{"k":1}', "0x3"), (3, -1, '{"k":3}', "0x4"), (3, 1, '{"k":3}', "0x5")]
    book = LetterBook("sales", {}, letters_max=5)

    lines, kept = book.take(
        pa.Table.from_pylist([{**about, "job": job, "weight": weight, "row": row, "reason": f"no {at}"} for job, weight, row, at in rows], DEAD_LETTERS), {}, {}
    )

    shown = [(job, line["_op"], line["row"], line["reason"]) for job, table in lines.items() for line in table.to_pylist()]
    assert sorted(shown) == [(1, "insert", '{"k":1}', "no 0x1"), (1, "insert", '{"k":2}', "no 0x2"), (2, "delete", '{"k":1}', "no 0x1")]
    reopened = LetterBook("sales", {}, letters_max=5)
    reopened.load(kept)
    reopened.load_images(book.kept_images())
    assert [letter.reason for letter in reopened._letters.values()] == ["no 0x2"] and len(reopened.again(None, job=4).letters) == 1


def test_rows_that_go_together_take_all_letters_with_them_that_they_came_with() -> None:
    """One of two letters stayed, and the other was there -1 times: tried again, it gave the targets a row that is nowhere."""
    about = {"step": "02_apply", "origin": "f.py:1", "row": '{"k":1}'}
    came = [(1, 1, "0x1", image(1)), (2, 1, "0x2", image(1)), (2, 1, "0x3", image(2))]
    for went, left in (
        ([(3, -2, "0x4", image(1))], ["0x3"]),
        ([(3, -2, "0x1", image(1))], ["0x3"]),
        ([(3, -1, "0x4", image(2))], ["0x1", "0x2"]),
        ([(3, -1, "0x1", image(2))], ["0x1", "0x2"]),
        ([(3, -2, "0x4", image(1)), (4, -1, "0x5", image(2))], []),
    ):
        book = LetterBook("sales", {}, letters_max=5)
        rows = [{**about, "job": job, "weight": weight, "reason": at, "image": of} for job, weight, at, of in [*came, *went]]
        _, kept = book.take(pa.Table.from_pylist(rows, DEAD_LETTERS), {}, {})
        reopened = LetterBook("sales", {}, letters_max=5)
        reopened.load(kept)
        reopened.load_images(book.kept_images())
        for one in (book, reopened):
            assert sorted((letter.reason, letter.times) for letter in one._letters.values()) == [(reason, 1) for reason in left]
            assert sorted(letter.image or b"" for letter in one.again(None, job=5).letters) == [image(2 if reason == "0x3" else 1) for reason in left]


def image(k: int) -> bytes:
    return image_of(pa.table({"k": [k], "_job": [1], "_w": [1]}))


def test_how_many_letters_there_are_is_known_without_reading_them(tmp_path: Path) -> None:
    """While the flow runs, and to those who only look: in memory and stored, changed and gone, in a state that was built anew, before anybody has asked."""
    stage = Stage(tmp_path / "wh")
    table = letters_table("plain")
    stage.wh.create_table(table.name, pa.schema(list(table.columns)), keys=table.keys)
    stage.wh.create_stream("failing", "id STRING NOT NULL, step STRING, line STRING, reason STRING, row STRING, times BIGINT, job BIGINT", keys=["id"])
    failing = stage.wh.stream("failing")

    def row(name: str) -> dict[str, Any]:
        return {"id": name, "step": "02_derive", "line": "a.py:1", "reason": "no", "row": "{}", "times": 1, "job": 1}

    def told(count: int) -> None:
        stage.clock.advance(1)
        assert stage.runner is not None
        stage.wh._flows("test").bring_up(stage.runner, wait_s=20)
        (here,) = stage.wh.flows()
        stage.wh._writer("test").mover.make_safe()
        with rt.open(tmp_path / "wh", read_only=True, clock=stage.clock) as looking, looking._engine.reading() as parts:
            assert (here.dead_letters, letters_kept("plain", parts.catalyst.tables)) == (count, count)

    try:
        stage.runner, stage.engine = run_plain(stage.wh, {table.name: "failing"}, keys=["id"])
        told(0)
        failing.insert([row(name) for name in "abcd"])
        told(4)
        failing.update([{**row("a"), "reason": "never"}])
        failing.delete([{"id": "b"}])
        told(3)
        stage.wh.materialize()
        told(3)
        failing.delete([{"id": "a"}, {"id": "c"}])
        failing.insert([row("e")])
        told(2)
        stage.runner.stop()
        stage.runner, stage.engine = run_plain(stage.wh, {table.name: "failing"}, keys=["id"], rebuild=True)
        told(2)
        failing.delete([{"id": "d"}])
        told(1)
        assert len(stage.wh.read(table.name)) == 1
        told(1)
    finally:
        stage.close()
