"""A process that has imported everything and forks one victim per request, because an import costs more than a crash test.

In: requests, one JSON object per line.
Out: how each victim ended, one JSON object per line.
Promise: the parent opens no warehouse and starts no thread of its own, so a fork is as good as a new process.
"""

import json
import os
import select
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import righttime as rt
from tests.support.crash_plan import BOUNDS, Plan
from tests.support.crash_scripts import SCRIPTS
from tests.support.crash_work import run_plan
from tests.support.warm_python import REPOSITORY, arm_point

_LIFE_S = 60.0
# Calls that change files; the system's own hooks report them before they happen.
_FILE_EVENTS = frozenset({"os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "sqlite3.connect", "mmap.__new__"})


@dataclass(frozen=True, slots=True)
class Victim:
    """What a forked process shall do (`plan`, `open` or the name of a script) and how it shall die: at the n-th arrival at a point,
    at the n-th file operation, after a time, or not at all."""

    folder: str
    journal: str = ""
    work: str = "plan"
    seed: int = 0
    run: int = 0
    threads: bool = False
    crash_at: str = ""
    file_event: int = 0
    life_s: float = _LIFE_S


@dataclass(frozen=True, slots=True)
class Death:
    """How a victim ended; `signal` is 0 if it ended by itself."""

    pid: int
    signal: int
    exit_code: int
    error: str

    @property
    def killed(self) -> bool:
        return self.signal == signal.SIGKILL


class Zygote:
    """The test's end of the line."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash_zygote"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=REPOSITORY, text=True
        )

    def run(self, victim: Victim) -> Death:
        """Run a victim to its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(asdict(victim)) + "\n")
        stdin.flush()
        return Death(**json.loads(stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def serve() -> None:
    """Fork a victim for each line that comes in."""
    for line in sys.stdin:
        victim = Victim(**json.loads(line))
        said, to_say = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(said)
            _live(victim, to_say)
        os.close(to_say)
        sys.stdout.write(json.dumps(asdict(_wait(pid, victim, said))) + "\n")
        sys.stdout.flush()


def _wait(pid: int, victim: Victim, said: int) -> Death:
    handle = os.pidfd_open(pid)
    if not select.select([handle], [], [], victim.life_s)[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(handle)
    with os.fdopen(said) as pipe:
        error = pipe.read()
    return Death(pid, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, os.waitstatus_to_exitcode(status), error)


def _live(victim: Victim, to_say: int) -> None:
    try:
        arm(victim)
        _work(victim)
        code = 0
    except BaseException:
        os.write(to_say, traceback.format_exc().encode()[-60_000:])
        code = 1
    os._exit(code)


def arm(victim: Victim) -> None:
    """Set the way to die."""
    arm_point(victim.crash_at)
    if victim.file_event:
        left = victim.file_event

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if event in _FILE_EVENTS or (event == "open" and args[1] not in ("r", "rb") and args[2] & (os.O_WRONLY | os.O_RDWR)):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)


def _work(victim: Victim) -> None:
    folder = Path(victim.folder)
    if victim.work == "plan":
        run_plan(folder, Path(victim.journal), Plan(victim.seed, run=victim.run), threads=victim.threads)
    elif victim.work == "open":
        # Images apart from those of all other tests: what they leave is removed by whoever opens next, and would count as what recovery does.
        rt.open(folder, **BOUNDS, image_dir=folder.parent / "images")
        # Recovery is over; a victim that was to die at some later time waits for it.
        if not victim.file_event:
            signal.pause()
    else:
        SCRIPTS[victim.work](folder)


if __name__ == "__main__":
    serve()
