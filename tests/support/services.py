"""Real services in processes of their own, and certificates for them.

In: a folder, options of `righttime serve`.
Out: the address, and the process to stop or kill.
Promise: no process outlives its test.
"""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from righttime.flight.warehouse import RemoteWarehouse, open_remote
from tests.support.warm_python import REPOSITORY, WarmPython

START_S = 60.0
END_S = 150.0


class Service:
    """One `righttime serve`; `logs` are its events as JSON lines. It is forked from a process that has imported righttime, unless it shall be `cold`."""

    def __init__(
        self, folder: Path, *options: str | Path, port: int = 0, target: str | None = None, crash_at: str | None = None, cold: bool = False, **settings: Any
    ) -> None:
        self.folder = folder
        self._cold = cold
        self._target = target or str(folder)
        self._options = [str(option) for option in options]
        self._settings = {f"RIGHTTIME_{name.upper()}": str(value) for name, value in settings.items()}
        self.errors = folder.with_name(f"{folder.name}-errors.txt")
        self.port = port
        self.health_port = 0
        self.process: subprocess.Popen[bytes] | WarmPython
        self.start(crash_at=crash_at)

    def start(self, *, crash_at: str | None = None) -> None:
        """Start it, again on the same port if it ran before, and wait until it takes work; with `crash_at` it dies at that point."""
        arguments = ["-m", "righttime.cli", "--log-json", "serve", self._target, "--port", str(self.port), *self._options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RIGHTTIME_")} | self._settings
        environment["PYTHONPATH"] = "src"
        if crash_at is not None:
            environment["RIGHTTIME_CRASH_AT"] = crash_at
        with self.errors.open("a") as errors:
            if self._cold:
                self.process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=REPOSITORY)
            else:
                self.process = WarmPython(*arguments, environment=environment, errors=errors)
        self._await_line()

    def _await_line(self) -> None:
        output = self.process.stdout
        assert output is not None
        deadline_s = time.monotonic() + START_S
        said = ""
        with selectors.DefaultSelector() as ready:
            ready.register(output, selectors.EVENT_READ)
            while ready.select(timeout=max(deadline_s - time.monotonic(), 0)):
                piece = os.read(output.fileno(), 4096).decode()
                said += piece
                if serving := re.search(r"^Serving righttime://.*:(\d+)\n", said, re.MULTILINE):
                    health = re.search(r"^Health and metrics on port (\d+)$", said, re.MULTILINE)
                    self.port, self.health_port = int(serving[1]), int(health[1]) if health else 0
                    return
                if not piece:
                    break
        self.kill()
        raise AssertionError(f"the service did not start: {self.logs()}")

    @property
    def address(self) -> str:
        return f"righttime://127.0.0.1:{self.port}"

    def connect(self, **options: Any) -> RemoteWarehouse:
        return open_remote(self.address, **options)

    def logs(self) -> str:
        return self.errors.read_text()

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self._reap()

    def terminate(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        try:
            code = self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the service did not end: {self.logs()[-20:]}") from error
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        return code

    def revive(self) -> None:
        """Wait for it to die, and start it again."""
        self._reap()
        self.start()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()


def make_certificate(folder: Path, name: str, *, hosts: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
    """Make a self-signed certificate for this machine, or for other hosts, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(folder, f"req -x509 -newkey rsa:2048 -nodes -days 2 -addext subjectAltName={hosts} -keyout {key} -out {certificate} -subj /CN={name}")
    return certificate, key


def make_expired_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make one for this machine that ended long ago."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(folder, f"req -new -newkey rsa:2048 -nodes -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {key} -out request.pem -subj /CN={name}")
    (folder / "index.txt").touch()
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nserial=serial\ndefault_md=sha256\ncopy_extensions=copy\n"
        "policy=p\n[p]\ncommonName=supplied\n"
    )
    dates = "-startdate 20200101000000Z -enddate 20200102000000Z"
    _openssl(folder, f"ca -batch -config ca.cnf -selfsign -in request.pem -keyfile {key} -create_serial {dates} -notext -out {certificate}")
    return certificate, key


def _openssl(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
