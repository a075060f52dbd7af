"""Rows that do not meet an expectation, as whoever keeps an eye on flows sees them: in the status, and as a metric."""

from pathlib import Path

import pytest
from rich.console import Console

from righttime.cli.flows import jobs_of
from righttime.flows.jobs import FlowStatus, JobReport
from righttime.telemetry import METRICS
from tests.support.flow_stage import Stage
from tests.support.plain_flow import PlainDrained


def shown(*jobs: JobReport, narrow: bool) -> str:
    """Return the last jobs of a flow as the command line prints them."""
    console = Console(width=80 if narrow else 200, color_system=None)
    with console.capture() as captured:
        for table in jobs_of(FlowStatus("sales", True, "", ("line",), ("sale",), 0, 0, 0, 0.0, jobs), narrow=narrow):
            console.print(table)
    return captured.get()


@pytest.mark.parametrize("narrow", [False, True])
def test_the_status_shows_unmet_expectations_where_there_are_any(narrow: bool) -> None:
    """With their names, which are a user's and no markup; a flow that meets all has no column for it."""
    met = JobReport(1, "query", 0, 10, 5, 1, {})
    unmet = JobReport(2, "query", 0, 10, 5, 1, {}, {"some [bold] sold": 1_234})

    assert "some [bold] sold 1,234" in " ".join(shown(met, unmet, narrow=narrow).split())
    assert "unmet" not in shown(met, narrow=narrow)


def test_unmet_expectations_are_counted_over_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of jobs ends after some; the metric does not."""
    monkeypatch.setattr(PlainDrained, "unmet", lambda self, number: {"sold": number})
    counter = METRICS.counter("righttime_flow_unmet_total")
    before = counter.value(flow="flow.plain", expectation="sold")
    stage = Stage(tmp_path / "wh")
    try:
        stage.run()
        for k in (1, 2):
            stage.insert(k, k)
            stage.clock.advance(1)
            assert k in stage.query()
    finally:
        stage.close()

    assert counter.value(flow="flow.plain", expectation="sold") == before + 3
