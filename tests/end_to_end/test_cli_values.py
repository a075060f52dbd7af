"""How the command line writes values: for people short, for machines without loss."""

import re
from datetime import date, datetime
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from righttime.cli import run
from righttime.cli.console import WIDE, error_line, moment, seconds, share, size
from righttime.cli.sql import cell_text, json_value, unique_names
from righttime.cli.status import show
from righttime.errors import (
    AccessDenied,
    BadDeclaration,
    CatalystFull,
    FlowChanged,
    FreshnessUnavailable,
    FreshnessUnknown,
    RightTimeError,
    SessionLost,
    SqlRefused,
    StateMissing,
    StatesAhead,
    WarehouseLocked,
)
from righttime.flows.jobs import FlowStatus, JobReport
from righttime.status import ProducerStatus, Status, TableStatus


@pytest.mark.parametrize(
    ("value", "as_json", "as_text"),
    [
        (None, None, "None"),
        (True, True, "true"),
        (7, 7, "7"),
        (0.5, 0.5, "0.5"),
        (float("nan"), "nan", "nan"),
        (float("-inf"), "-inf", "-inf"),
        (Decimal("1.50"), "1.50", "1.50"),
        (b"\x00\xff", "00ff", "00ff"),
        (date(2025, 5, 1), "2025-05-01", "2025-05-01"),
        (datetime(2025, 5, 1, 12), "2025-05-01T12:00:00", "2025-05-01T12:00:00"),
        ([1, None, Decimal(2)], [1, None, "2"], '[1, null, "2"]'),
        ({"é": [date(2025, 5, 1)]}, {"é": ["2025-05-01"]}, '{"é": ["2025-05-01"]}'),
        ([("k", 1)], [["k", 1]], '[["k", 1]]'),
    ],
)
def test_values_are_written_without_loss(value: Any, as_json: Any, as_text: str) -> None:
    """Every type an answer can hold has one way to be written."""
    assert json_value(value) == as_json
    assert cell_text(value) == as_text


def test_names_that_come_twice_are_told_apart() -> None:
    """An object cannot have a name twice, an answer can; invented names avoid those that exist."""
    assert unique_names(("a", "b", "a", "a_2", "a")) == ["a", "b", "a_2", "a_2_2", "a_3"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 ms"), (0.00002, "20 µs"), (0.25, "250 ms"), (1.5, "1.50 s"), (119.0, "119.00 s"), (240.0, "4.0 min"), (36_000.0, "10.0 h"), (None, "exact cut")],
)
def test_durations_are_written_for_people(value: float | None, text: str) -> None:
    """The unit follows the size."""
    assert seconds(value) == text


def test_sizes_shares_and_moments_are_written_for_people() -> None:
    """Bytes in binary units, bounds in percent, commit times in UTC."""
    assert [size(value) for value in (0, 1023, 1024, 5 * 1024**2, 3 * 1024**4)] == ["0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3.0 TiB"]
    assert [share(1, 4), share(1, 0)] == ["25.0 %", "unused"]
    assert [moment(0), moment(1_500_000)] == ["-", "1970-01-01 00:00:01.500000 UTC"]


def test_errors_of_ours_and_bugs_are_told_apart() -> None:
    """Our errors end with the way out; anything else is called a bug, and the way to report it is named."""
    ours = error_line(SqlRefused(reason="it writes\n  rows", way_out="Use a producer.")).plain
    bug = error_line(ValueError("no [red]luck[/]")).plain

    assert ours == "error [sql.refused] This statement is not accepted here: it writes rows. Use a producer."
    assert bug.startswith("error [bug] ValueError: no [red]luck[/].")
    assert "--debug" in bug


@pytest.mark.parametrize("kind", [FreshnessUnavailable, FreshnessUnknown, AccessDenied, WarehouseLocked, CatalystFull, SessionLost])
def test_the_way_out_is_one_of_the_command_line(kind: type[RightTimeError]) -> None:
    """Messages advise Python code; here options, variables and commands take the place of its arguments and methods."""
    facts = {"table": "sale", "source": "till", "target": "a:1", "path": "shop", "pid": 1, "host": "h", "used": 1, "bound": 2, "setting": "s", "lost": "it"}
    line = error_line(kind(**facts, waited_s=1.0, stale_s=2.0, why="slow", action="read", reason="none")).plain
    assert re.search(r"\w=|\w\(\)|Warehouse\.", line) is None
    assert re.search(r"--\w|RIGHTTIME_TOKEN|righttime |sql, status", line)


@pytest.mark.parametrize(
    "error",
    [
        FlowChanged(flow="sales"),
        StatesAhead(flow="sales", known=5, job=4),
        StateMissing(flow="sales", jobs=3, folder="flows/sales"),
        BadDeclaration(flow="sales", origin="f.py:3", reason="table 'a' has rows already; run the flow with refresh=True to replace them"),
    ],
    ids=lambda error: error.code,
)
def test_a_flow_that_has_to_be_built_anew_is_so_by_an_option(error: RightTimeError) -> None:
    """The advice can be typed as it stands; Python's argument is not mentioned."""
    line = error_line(error).plain
    assert "`righttime run --refresh sales`" in line and "refresh=" not in line, line


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_status_fits_into_a_terminal(width: int) -> None:
    """Nothing is cut off: flows are stacked, the times of jobs have a table of their own, long names run over several lines."""
    lines = [line.rstrip() for line in shown_status(width).splitlines()]

    assert max(map(len, lines)) <= width
    together = re.sub(r"\s+", " ", "\n".join(lines))
    assert "…" not in together
    for fact in (
        "store_sales_by_class 12,345 1,234,567",
        "sales runs",
        "returns step 02_derive failed: there is no row",
        "into item_dim, store_sales_by_class",
        "sales: 1,400 rows could not be worked on, see sales_dead_letters returns: 1 row could not be worked on, see returns_dead_letters",
    ):
        assert fact in together
    for fact in ("changes waiting 12,345", "up to 2026-09-21 14:13:20.123", "7 background", "250 ms 12.30 s 40 ms 12.60 s"):
        assert fact in together


def test_a_status_in_a_pipe_has_one_line_for_each_flow_and_job() -> None:
    """Programs that read lines find all of a flow in one."""
    shown = shown_status(WIDE)
    assert re.search(r"^sales +runs +item_dim, store_sales_by_class +2 +12,345 +3.50 s +2026-09-21 14:13:20.123", shown, re.MULTILINE)
    assert re.search(r"^ +7 +background .* 12,345 +6,789 +3 +12 ms +250 ms +12.30 s +40 ms +12.60 s +░", shown, re.MULTILINE)


def shown_status(width: int) -> str:
    """Return what a terminal of this width shows of two flows, of which one has stopped."""
    at_us, took = 1_790_000_000_123_456, {"prepare_s": 0.012, "wait_s": 0.25, "compute_s": 12.3, "publish_s": 0.04}
    jobs = [JobReport(number, "background", at_us, 12_345, 6_789, 3, took) for number in range(3, 8)]
    trouble = "step 02_derive failed: there is no row for something that takes many words to tell"
    flows = (
        FlowStatus("sales", True, "", ("line",), ("item_dim", "store_sales_by_class"), 2, 12_345, at_us, 3.5, jobs, dead_letters=1_400),
        FlowStatus("returns", False, trouble, ("line",), ("returned",), 0, 0, at_us, 0.0, (), dead_letters=1),
    )
    found = Status(
        path="/srv/shop/warehouse",
        state=7,
        state_durable=7,
        tables=(TableStatus("store_sales_by_class", 12, 1_234_567, 12_345, 10_000_000, 5_000_000, 12.5),),
        producers=(ProducerStatus("till", "OnDemand", 100, 12, 4.0),),
        rows_unsafe=0,
        log_bytes=1000,
        log_bytes_max=10**9,
        memory_bytes_max=10**8,
        spill_bytes_max=10**9,
        queries=0,
        commits_lost=0,
        flows=flows,
    )
    screen = Console(width=width, file=StringIO(), highlight=False)
    show(screen, found, [])
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def test_help_names_the_variable_of_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever gives the address of a service is told where its token goes."""
    run(["sql", "--help"])
    assert "RIGHTTIME_TOKEN" in capsys.readouterr().out
