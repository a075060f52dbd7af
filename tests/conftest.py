"""Fixtures of the whole run: one PostgreSQL server and one Spark, each started by the first test that needs it."""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.support.quick_java import COMPILED, INTERPRETED, ArchiveBuilder, start_quickly

if TYPE_CHECKING:
    from righttime.pipeline.spark import SparkOwner
    from tests.support.postgres import TempPostgres

# Machines that run tests are shared and slow at times: a property fails on a wrong answer, not on a slow one.
hypothesis.settings.register_profile("righttime", deadline=None, print_blob=True)
hypothesis.settings.load_profile("righttime")

start_quickly()

# A shell gives what it starts in the background, as in `nohup make test &`, deaf ears for Ctrl-C; tests send it to programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_MEMORY = Path("/dev/shm")
MEMORY_MIN = 6 << 30

# With several workers, what runs for long runs first and short unit tests last, so that no worker sits on a long file while the others have nothing left.
FILES_SHOWN = 30
LONGEST = (
    "tests/docs/test_programs.py",
    "tests/integration/test_drain.py",
    "tests/end_to_end/test_service_load.py",
    "tests/integration/test_random_flows.py",
    "tests/faults/test_flow_kill.py",
    "tests/end_to_end/test_flows_cli.py",
    "tests/integration/test_several_catalysts.py",
    "tests/integration/test_signed_aggregates.py",
    "tests/integration/test_planned_drains.py",
    "tests/integration/test_same_in_every_drain.py",
    "tests/integration/test_flight_spark.py",
    "tests/integration/test_flow_restarts.py",
    "tests/integration/test_postgres_queries.py",
    "tests/integration/test_at_x10_everywhere.py",
    "tests/integration/test_replayed_letters.py",
    "tests/integration/test_signed_history.py",
    "tests/integration/test_flight_connections.py",
    "tests/integration/test_postgres_store.py",
    "tests/faults/test_crash_points.py",
    "tests/integration/test_spark_process.py",
    "tests/integration/test_failing_rows.py",
    "tests/integration/test_flight_crash.py",
    "tests/simulation/test_process_machine.py",
    "tests/simulation/test_state_machine.py",
)


@pytest.fixture(scope="session")
def postgres() -> Iterator["TempPostgres"]:
    """A PostgreSQL server that nobody else uses; make your own tables and drop them."""
    from tests.support.postgres import TempPostgres

    with TempPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def spark_owner() -> Iterator["SparkOwner"]:
    """The Spark of this run, on two cores; stopped when the run ends. It interprets plans: most are run once, over a few rows."""
    from righttime.pipeline.spark import SparkOwner
    from righttime.settings import load_settings

    owner = SparkOwner(load_settings(spark_master="local[2]", spark_conf=INTERPRETED))
    yield owner
    owner.stop()


@pytest.fixture(scope="module")
def compiled_plans(spark_owner: "SparkOwner") -> Iterator[None]:
    """Sessions of a module compile their plans, as users' do: for what may come out otherwise in compiled code."""
    from righttime.pipeline import spark

    with pytest.MonkeyPatch.context() as patch:
        for name, value in COMPILED.items():
            patch.setitem(spark.CHILD_CONF, name, value)
        patch.setattr(spark_owner, "_template", None)  # what its children are made after, from the next one on and again afterwards
        yield


def pytest_configure(config: pytest.Config) -> None:
    """With several workers, as in `make test`, many Sparks will be started: prepare for it, once. `make check` starts none."""
    _folders_in_memory(config)
    without = all(argument.startswith(("tests/unit", "tests/properties")) for argument in config.args)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput") and not without:
        builder = ArchiveBuilder()
        builder.start()
        config.add_cleanup(builder.stop)


def _folders_in_memory(config: pytest.Config) -> None:
    """Give tests folders in memory, if there is plenty: waiting for a disk takes a fifth of their time, and a kill does not take what the kernel has."""
    if not getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput") or config.option.basetemp is not None:
        return
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= MEMORY_MIN and _memory_available() >= 2 * MEMORY_MIN:
        place = tempfile.mkdtemp(prefix="rt-tests-", dir=SHARED_MEMORY)
        config.option.basetemp = str(Path(place) / "run")
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))


def _memory_available() -> int:
    """Return the bytes that can be used without swapping; 0 if that cannot be told."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files for several workers, and mark tests by the servers they ask for, so that `-m "not spark"` leaves out what needs a JVM."""
    if hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: (places.get(item.location[0], len(places)), item.location[0].startswith("tests/unit/")))
    for item in items:
        names = getattr(item, "fixturenames", [])
        if "spark_owner" in names:
            item.add_marker(pytest.mark.spark)
        if "postgres" in names:
            item.add_marker(pytest.mark.postgres)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the files that take longest, where all are run: what a session adds is seen there, and what `LONGEST` should begin with."""
    if not getattr(config.option, "numprocesses", None):
        return
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                name = report.nodeid.partition("::")[0]
                seconds[name] = seconds.get(name, 0.0) + report.duration
    longest = sorted(seconds.items(), key=lambda one: -one[1])[:FILES_SHOWN]
    terminalreporter.write_sep("=", f"slowest {len(longest)} files")
    for name, spent_s in longest:
        terminalreporter.write_line(f"{spent_s:.0f}s {name}")
