"""Events and metrics: silent by default, readable by machines, bounded."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.catalyst.listener import Listener
from righttime.errors import BadSetting
from righttime.flight.health import status_series
from righttime.query.issue import _within
from righttime.telemetry import METRICS, ROOT, Metrics, configure, get_log
from tests.support.clocks import SteppedClock


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Leave the process's logging as the test found it."""
    logger = logging.getLogger(ROOT)
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers, logger.level = handlers, level
    logger.setLevel(level)


def test_nothing_is_printed_before_somebody_asks(capsys: pytest.CaptureFixture[str]) -> None:
    """A library does not write to the terminal of its user, not even errors."""
    get_log("part").error("flush.failed", table="sale")

    assert capsys.readouterr() == ("", "")


def test_an_event_is_one_json_line_with_its_fields() -> None:
    """Fields keep their types; names that logging reserves get an underscore."""
    stream = io.StringIO()
    configure("info", json=True, stream=stream)

    get_log("catalyst").bind(source="till").info("flush.done", table="sale", rows=3, name="x")
    get_log("catalyst").debug("flush.begun")

    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "flush.done", "level": "info", "logger": "righttime.catalyst", "source": "till", "table": "sale", "rows": 3, "name_": "x"}


def test_a_second_set_up_replaces_the_first() -> None:
    """No event is written twice."""
    first, second = io.StringIO(), io.StringIO()
    configure("info", stream=first)
    configure("warning", stream=second)

    get_log("part").info("quiet")
    get_log("part").warning("loud", rows=1)

    assert first.getvalue() == ""
    assert second.getvalue().count("loud") == 1
    assert "quiet" not in second.getvalue()


def test_an_exception_arrives_with_its_traceback() -> None:
    """log.exception keeps what happened."""
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    try:
        int("seven")
    except ValueError:
        get_log("part").exception("parse.failed")

    assert "ValueError: invalid literal" in json.loads(stream.getvalue())["exception"]


def test_an_application_with_its_own_logging_sees_plain_records(caplog: pytest.LogCaptureFixture) -> None:
    """The event is the message, its fields are extras."""
    with caplog.at_level(logging.INFO, logger=ROOT):
        get_log("part").info("flush.done", rows=3)

    (record,) = caplog.records
    assert (record.name, record.getMessage(), vars(record)["rows"]) == ("righttime.part", "flush.done", 3)


def test_an_unknown_level_is_refused() -> None:
    """The error names the levels there are."""
    with pytest.raises(BadSetting, match="debug, info"):
        configure("chatty")


def test_metrics_are_read_as_prometheus_series() -> None:
    """One number per set of labels, the same metric for the same name."""
    metrics = Metrics()
    metrics.counter("righttime_rows_total").inc(2, table="sale")
    metrics.counter("righttime_rows_total").inc(table="sale")
    metrics.counter("righttime_rows_total").inc(table='a"b')
    hot = metrics.gauge("righttime_hot_bytes")
    hot.set(10)
    hot.add(-4)

    assert metrics.snapshot() == {
        "righttime_hot_bytes": 6.0,
        'righttime_rows_total{table="a\\"b"}': 1.0,
        'righttime_rows_total{table="sale"}': 3.0,
    }
    assert metrics.counter("righttime_rows_total").value(table="sale") == 3.0
    assert hot.value(table="none") == 0.0


def test_series_are_bounded_and_the_sum_stays_right() -> None:
    """Labels beyond the bound fall into one series."""
    metrics = Metrics(series_max=2)
    counter = metrics.counter("righttime_commits_total")
    for number in range(10):
        counter.inc(source=f"s{number}")

    snapshot = metrics.snapshot()
    assert len(snapshot) == 3
    assert sum(snapshot.values()) == 10.0


def test_how_old_answers_are_and_what_waits_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lazy producer holds a commit back: its age grows until a query wants it; answers are counted by how old their cuts are."""
    monkeypatch.setattr(Listener, "start", lambda self: None)
    clock, counted = SteppedClock(0.0), METRICS.counter("righttime_query_staleness_total")
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        wh.create_table("x", "n INT")
        load = wh.producer(name="p", policy=rt.OnDemand())
        clock.set(1)
        load.insert("x", (1,))
        load.commit()
        clock.set(4)
        assert status_series(wh.status())["righttime_unflushed_seconds"] == 3
        before = {age: counted.value(within=age) for age in ("0.1", "1", "10")}
        assert wh.read("x", freshness="4s").receipt.given_s == 4
        load.flush()
        wh.read("x")
        assert {age: counted.value(within=age) - known for age, known in before.items()} == {"0.1": 1, "1": 0, "10": 1}
        assert status_series(wh.status())["righttime_unflushed_seconds"] == 0
    assert [_within(given_s) for given_s in (None, 0, 0.1, 0.2, 60, 601)] == ["unknown", "0.1", "0.1", "1", "60", "+Inf"]
