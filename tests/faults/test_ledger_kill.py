"""Real processes, killed with SIGKILL: the lock, the commit point and the trace hold."""

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from righttime.changes.position import Commit
from righttime.errors import WarehouseLocked
from righttime.ledger.sqlite import Ledger
from righttime.ledger.state import EMPTY
from righttime.ledger.trace import CommitTrace
from righttime.settings import load_settings
from tests.support.warm_python import WarmPython

SETTINGS = load_settings()
SEEDS = range(10)

HEAD = """
import os, sys, signal
from pathlib import Path
folder = Path(sys.argv[1])
def say(what): sys.stdout.write(f"{what}\\n"); sys.stdout.flush()
"""
LEDGER_HEAD = """
from dataclasses import replace
from righttime.changes.position import Commit
from righttime.ledger.sqlite import Batch, Ledger
from righttime.ledger.state import EMPTY
from righttime.settings import load_settings
"""
HOLD = (
    LEDGER_HEAD
    + """
ledger = Ledger.open(folder, settings=load_settings())
say(os.getpid())
signal.pause()
"""
)
HOLD_WITH_CHILD = (
    LEDGER_HEAD
    + """
ledger = Ledger.open(folder, settings=load_settings())
child = os.fork()
if child == 0:
    say("child")
    signal.pause()
say(child)
signal.pause()
"""
)
WRITE_STATES = (
    LEDGER_HEAD
    + """
ledger = Ledger.open(folder, settings=load_settings(states_max=50))
for number in range(1, 1_000_000):
    batch = Batch("till", f"b{number}", Commit(number, number * 10), number, 1)
    state = replace(EMPTY, number=number, time_us=number * 10, positions={"till": Commit(number, number * 10)})
    ledger.write_state(state, kind="commit", batches=[batch], view=("last", str(number)))
    say(number)
"""
)
RECORD = """
from righttime.ledger.trace import CommitTrace
trace = CommitTrace.open(folder)
slots = [trace.slot(f"s{k}") for k in range(3)]
for number in range(1, 1_000_000_000):
    for slot in slots:
        trace.record(slot, number, number * 3, number * 7)
    if number % 500 == 0:
        say(number)
"""
VISIT = (
    LEDGER_HEAD
    + """
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
from righttime.errors import WarehouseReadOnly
ledger = Ledger.open(folder, settings=load_settings(), read_only=True)
say(ledger.newest_state().number)
try:
    ledger.add_pin("nobody", 1, expires_us=10**18)
except WarehouseReadOnly as error:
    say(error.code)
"""
)


@contextmanager
def process(script: str, folder: Path, *, crash_at: str = "") -> Iterator[WarmPython]:
    """Run a script on a warehouse folder; it is dead when the block ends."""
    with WarmPython("-c", HEAD + script, folder, environment={**os.environ, "RIGHTTIME_CRASH_AT": crash_at}) as child:
        try:
            yield child
        finally:
            child.kill()


def read_line(child: WarmPython) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def kill_and_read_rest(child: WarmPython) -> list[str]:
    child.kill()
    return child.communicate()[0].split()


def check_whole(folder: Path, *, newest: range) -> None:
    """The newest state is one of `newest`, and everything that came with it is there, nothing that came after."""
    ledger = Ledger.open(folder, settings=SETTINGS)
    number = ledger.newest_state().number
    assert number in newest
    if number:
        commit = Commit(number, number * 10)
        batch = ledger.batch("till", f"b{number}")
        assert ledger.newest_state().positions == {"till": commit}
        assert batch is not None and batch.commit == commit
        assert ledger.views() == {"last": str(number)}
    else:
        assert ledger.newest_state() == EMPTY
        assert ledger.views() == {}
    assert ledger.batch("till", f"b{number + 1}") is None
    ledger.close()


def test_a_second_process_is_told_who_writes_and_gets_in_after_a_kill(tmp_path: Path) -> None:
    """WarehouseLocked names the process; SIGKILL frees the warehouse at once; readers are let in all the time."""
    with process(HOLD, tmp_path) as holder:
        pid = int(read_line(holder))
        with pytest.raises(WarehouseLocked) as caught:
            Ledger.open(tmp_path, settings=SETTINGS)
        assert caught.value.context["pid"] == pid == holder.pid
        assert caught.value.context["host"] == os.uname().nodename
        Ledger.open(tmp_path, settings=SETTINGS, read_only=True).close()

        kill_and_read_rest(holder)

        Ledger.open(tmp_path, settings=SETTINGS).close()


def test_a_forked_child_does_not_keep_a_dead_writers_lock(tmp_path: Path) -> None:
    """The lock belongs to the process that took it, not to the children it forked, whichever lives longer."""
    with process(HOLD_WITH_CHILD, tmp_path) as holder:
        child = next(int(line) for line in (read_line(holder), read_line(holder)) if line != "child")
        with pytest.raises(WarehouseLocked):
            Ledger.open(tmp_path, settings=SETTINGS)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        try:
            os.kill(child, 0)
            Ledger.open(tmp_path, settings=SETTINGS).close()
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("seed", SEEDS)
def test_states_written_until_a_kill_are_whole_and_none_is_lost(tmp_path: Path, seed: int) -> None:
    """I6: whatever the process had been told is durable is there; at most the one state in flight is there besides."""
    with process(WRITE_STATES, tmp_path) as writer:
        for _ in range(random.Random(seed).randint(1, 120)):
            told = int(read_line(writer))
        told = max([told, *map(int, kill_and_read_rest(writer))])

    check_whole(tmp_path, newest=range(told, told + 2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("point", "durable"), [("ledger.begun", False), ("ledger.committed", True)])
def test_a_kill_inside_the_commit_point_leaves_all_or_nothing(tmp_path: Path, point: str, durable: bool, seed: int) -> None:
    """Before the SQLite commit nothing of the state exists, after it everything does."""
    arrival = random.Random(seed).randint(1, 70)
    with process(WRITE_STATES, tmp_path, crash_at=f"{point}:{arrival}") as writer:
        assert writer.wait(timeout=60) == -signal.SIGKILL

    expected = arrival if durable else arrival - 1
    check_whole(tmp_path, newest=range(expected, expected + 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_notes_in_the_trace_survive_a_kill_whole(tmp_path: Path, seed: int) -> None:
    """Each source's newest note is read back with its three numbers in step, and not older than the process had said."""
    with process(RECORD, tmp_path) as recorder:
        for _ in range(random.Random(seed).randint(1, 40)):
            told = int(read_line(recorder))
        told = max([told, *map(int, kill_and_read_rest(recorder))])

    notes = CommitTrace.open(tmp_path).read()

    assert notes.keys() == {"s0", "s1", "s2"}
    for number, time_us, rows_total in notes.values():
        assert number >= told
        assert (time_us, rows_total) == (number * 3, number * 7)


def test_a_visitor_who_may_not_write_reads_and_cannot_pin() -> None:
    """A warehouse on a read-only disk answers; a pin, which must be written, is refused with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        ledger = Ledger.open(Path(folder), settings=SETTINGS)
        ledger.write_state(replace(EMPTY, number=1), kind="commit")
        ledger.close()
        # Root may write everywhere, so the visitor becomes somebody else then; others are kept out by the folder's rights.
        Path(folder).chmod(0o555)
        with process(VISIT, Path(folder)) as visitor:
            assert [read_line(visitor), read_line(visitor)] == ["1", "warehouse.read_only"]
        Path(folder).chmod(0o755)
