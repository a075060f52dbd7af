"""Python processes that cost little: each is forked from one that has imported righttime already, and then does what `python ARGUMENTS` does.

In: arguments as Python takes them (`-m module`, `-c text` or a file, then those of the program), environment, folder, and where output goes.
Out: the process, with the face of `subprocess.Popen`; or what it said, as `subprocess.run` returns it.
Promise: the process they are forked from has one thread and opens no warehouse, so a fork is as good as a new process; none outlives the test run.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO

REPOSITORY = Path(__file__).parents[2]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["righttime.cli", "righttime.flight.warehouse", "tests.support.load_client", "tests.support.process_client"])


class WarmPython:
    """One process; `stdin` and `stdout` are pipes to it if asked for, else it has none to read from and says nothing."""

    def __init__(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path = REPOSITORY,
        talk: bool = True,
        listen: bool = False,
        errors: IO[str] | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._asking = threading.Lock()
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            theirs = {0: nothing.fileno(), 1: nothing.fileno(), 2: errors.fileno() if errors is not None else nothing.fileno()}
            self.stdin = self._pipe(theirs, 0, "w") if listen else None
            self.stdout = self._pipe(theirs, 1, "r") if talk else None
            self._start([str(argument) for argument in arguments], dict(os.environ if environment is None else environment), cwd, theirs)
            for number in ([0] if listen else []) + ([1] if talk else []):
                os.close(theirs[number])

    def _pipe(self, theirs: dict[int, int], number: int, mode: str) -> IO[str]:
        reading, writing = os.pipe()
        theirs[number], ours = (writing, reading) if mode == "r" else (reading, writing)
        return os.fdopen(ours, mode)

    def _start(self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, theirs: Mapping[int, int]) -> None:
        streams = {number: Connection(os.dup(stream)) for number, stream in theirs.items()}
        warm()
        self._process = FORKS.Process(target=_live, args=(arguments, environment, cwd, streams), daemon=True)
        self._process.start()
        for stream in streams.values():
            stream.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return how it ended, as `subprocess` numbers it; None while it lives."""
        with self._asking:
            if self.returncode is None:
                self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self.poll() is None:
            wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"python, process {self.pid}", timeout or 0)
        return code

    def communicate(self) -> tuple[str, None]:
        """Return the rest of what it says, when it has ended."""
        assert self.stdout is not None
        if self.stdin is not None:
            self.stdin.close()
        said = self.stdout.read()
        self.wait()
        return said, None

    def send_signal(self, number: int) -> None:
        # It may have ended since: the process that forked it reaps it, and tells us a little later.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "WarmPython":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        self.wait()


def run_warm(*arguments: str | Path, environment: Mapping[str, str] | None = None, cwd: Path = REPOSITORY, timeout: float = 240) -> "Ended":
    """Run it to its end, and return how it ended and what it said; nothing is raised for a code other than 0."""
    with tempfile.TemporaryFile("w+") as errors:
        process = WarmPython(*arguments, environment=environment, cwd=cwd, errors=errors)
        late = threading.Timer(timeout, process.kill)
        late.start()
        with process:
            said = process.communicate()[0]
        late.cancel()
        late.join()
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, process.wait(), said, errors.read())


Ended = subprocess.CompletedProcess[str]


def arm_point(crash_at: str) -> None:
    """Set the way to die in a fork, as `RIGHTTIME_CRASH_AT` would have set it at import."""
    from righttime.changes import faults

    if crash_at:
        point, _, arrivals = crash_at.partition(":")
        faults._armed, faults._arrivals_left = faults.CrashPoint(point), int(arrivals or "1")


def warm() -> None:
    """Start the process that forks, if it is not there yet; it finds the tests wherever this one is at work."""
    from multiprocessing import forkserver

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _live(arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, streams: Mapping[int, Connection]) -> None:
    for number, stream in streams.items():
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    arm_point(environment.get("RIGHTTIME_CRASH_AT", ""))
    try:
        _run(*arguments)
    finally:
        # As Python itself ends: threads first, then what asked to be called.
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        atexit._run_exitfuncs()


def _run(how: str, *rest: str) -> None:
    if how == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        program = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), program.__dict__)
    else:
        sys.argv = [how, *rest]
        sys.path.insert(0, str(Path(how).parent))
        runpy.run_path(how, run_name="__main__")
