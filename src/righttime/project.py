"""Projects: a folder whose `righttime.toml` names a warehouse and the files that declare its flows.

In: a folder.
Out: a `Project`: the declared flows, and everything that is wrong with them before a row is looked at.
Promise: loading opens no warehouse and starts no Spark. One bad file hides nothing that is wrong in the others, and every problem names its file and line.
"""

import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from righttime.errors import RightTimeError
from righttime.errors.flows import BadProject, FlowError, NoProject
from righttime.flight.warehouse import is_service
from righttime.pipeline.cycles import check_cycles
from righttime.pipeline.flow import Flow, declared_at
from righttime.queues.declared import StreamSchema

FILE = "righttime.toml"
_NAMES = {"warehouse", "flows"}


@dataclass(frozen=True, slots=True)
class Project:
    """What a project declares; `problems` is empty if it can be run."""

    folder: Path
    warehouse: str
    flows: tuple[Flow, ...]
    problems: tuple[RightTimeError, ...]

    @property
    def streams(self) -> dict[str, StreamSchema]:
        """The streams that flows declare with their columns, by name."""
        return {schema.name: schema for flow in self.flows for schema in flow.declared}

    def chosen(self, names: list[str]) -> tuple[Flow, ...]:
        """Return the flows with these names, all if none is named; names that no flow has are left out."""
        wanted = {name.lower() for name in names}
        return tuple(flow for flow in self.flows if flow.name in wanted or not names)

    def unknown(self, names: list[str]) -> list[str]:
        """Return the names that no flow has."""
        known = {flow.name for flow in self.flows}
        return [name for name in names if name.lower() not in known]


def load_project(folder: Path) -> Project:
    """Read a project and the files of its flows; raise `NoProject` where there is none, and note what is wrong otherwise."""
    folder = folder.resolve()
    table = _read(folder)
    patterns = _texts(folder, table, "flows", ["flows/*.py"])
    flows: dict[int, Flow] = {}  # by identity: a flow that one file imports from another is one flow
    problems: list[RightTimeError] = []
    with _importing(folder):
        for path in _files(folder, patterns):
            try:
                flows.update({id(value): value for value in vars(_execute(path, folder)).values() if isinstance(value, Flow)})
            except (Exception, SystemExit) as error:
                problems.append(_located(error, path, folder))
    found = tuple(flows.values())
    if not found and not problems:
        problems.append(BadProject(origin=folder / FILE, reason=f"no file of {', '.join(patterns)} declares a flow"))
    problems += _clashes(found)
    return Project(folder, warehouse_of(folder) or "", found, tuple(problems))


def warehouse_of(folder: Path) -> str | None:
    """Return the warehouse that a project names, None if the folder is no project."""
    try:
        table = _read(folder)
    except NoProject:
        return None
    named = _text(folder, table, "warehouse", "warehouse")
    if is_service(named):
        reason = "warehouse of [project] is a service, and flows run in the process that has the warehouse open; name what it serves"
        raise BadProject(origin=folder / FILE, reason=f"{reason}, and serve it meanwhile with `righttime run --keep --listen`")
    try:
        return named if "://" in named else str((folder / Path(named).expanduser()).resolve())
    except (RuntimeError, ValueError, OSError) as error:
        raise BadProject(origin=folder / FILE, reason=f"warehouse of [project] is no path: {named!r} ({error})") from error


def _read(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoProject(path=folder, reason=f"it has no {FILE}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadProject(origin=path, reason=f"the file cannot be read: {error}") from error
    table = content.get("project")
    if not isinstance(table, dict):
        raise NoProject(path=folder, reason=f"{FILE} has no table [project]")
    for name in table:
        if name not in _NAMES:
            raise BadProject(origin=path, reason=f"[project] knows no {name!r}; known: {', '.join(sorted(_NAMES))}")
    return table


def _text(folder: Path, table: Mapping[str, Any], name: str, default: str) -> str:
    value = table.get(name, default)
    if not isinstance(value, str) or not value:
        raise BadProject(origin=folder / FILE, reason=f"{name} of [project] must be a text, not {value!r}")
    return value


def _texts(folder: Path, table: Mapping[str, Any], name: str, default: list[str]) -> list[str]:
    value = table.get(name, default)
    if not isinstance(value, list) or not all(isinstance(each, str) and each and not Path(each).is_absolute() for each in value):
        raise BadProject(origin=folder / FILE, reason=f"{name} of [project] must be a list of patterns below the folder, not {value!r}")
    return value


def _files(folder: Path, patterns: list[str]) -> list[Path]:
    """Return the files in a stable order; those whose names begin with _ are for other files to import."""
    found: set[Path] = set()
    for pattern in patterns:
        try:
            found.update(path for path in folder.glob(pattern) if path.is_file() and not path.name.startswith("_"))
        except (ValueError, NotImplementedError, OSError) as error:
            raise BadProject(origin=folder / FILE, reason=f"flows of [project] has {pattern!r}, which finds no files: {error}") from error
    return sorted(found)


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Let files of a project import each other, and forget them afterwards.

    Spark's workers know nothing of the folder: a function of a module that is forgotten is sent to them whole, and not by its name.
    """
    before, path = dict(sys.modules), list(sys.path)
    # A virtual environment may be in the folder, too; its packages are not the project's.
    others = [Path(entry) for entry in path if entry and Path(entry).is_relative_to(folder) and Path(entry) != folder]
    for name in [name for name, module in before.items() if _is_of(module, folder, others)]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [name for name, module in sys.modules.items() if _is_of(module, folder, others)]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})


def _is_of(module: ModuleType, folder: Path, others: Sequence[Path]) -> bool:
    if module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", ()))
    return any(Path(place).is_relative_to(folder) and not any(Path(place).is_relative_to(other) for other in others) for place in places)


def _execute(path: Path, folder: Path) -> ModuleType:
    name = ".".join(path.relative_to(folder).with_suffix("").parts)
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known  # another file has imported it
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    # Not by an importer: its cache of compiled files cannot tell two versions of one second apart.
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module


def _located(error: BaseException, path: Path, folder: Path) -> RightTimeError:
    """Return what went wrong in a file, with the newest line of the project on the way there."""
    if isinstance(error, FlowError) and "origin" in error.context:
        return error
    if isinstance(error, SyntaxError) and error.filename:
        return BadProject(origin=f"{error.filename}:{error.lineno}", reason=f"{type(error).__name__}: {error.msg}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)]
    origin = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else str(path)
    reason = " ".join(str(error).split()).removesuffix(".")
    return BadProject(origin=origin, reason=reason if isinstance(error, RightTimeError) else f"{type(error).__name__}: {reason}".removesuffix(": "))


def _clashes(flows: tuple[Flow, ...]) -> Iterator[RightTimeError]:
    """Find what no flow shows by itself: names, targets and streams that two of them declare, and cycles through several."""
    names: dict[str, Flow] = {}
    targets: dict[str, Flow] = {}
    streams: dict[str, tuple[Flow, StreamSchema]] = {}
    for flow in flows:
        if flow.name in names:
            yield BadProject(origin=flow.origin, reason=f"flow {flow.name!r} is declared at {names[flow.name].origin} already")
        names.setdefault(flow.name, flow)
        for target in flow.targets:
            other = targets.setdefault(target.table, flow)
            if other is not flow:
                yield BadProject(origin=target.origin, reason=f"table {target.table!r} is a target of flow {other.name!r}, declared at {other.origin}, already")
        for schema in flow.declared:
            first, known = streams.setdefault(schema.name, (flow, schema))
            if known != schema:
                origin, other_origin = declared_at(flow, schema.name), declared_at(first, schema.name)
                yield BadProject(origin=origin, reason=f"stream {schema.name!r} is declared otherwise in flow {first.name!r}, at {other_origin}")
    yield from _failing([flow.freeze for flow in flows])
    yield from _failing([lambda: check_cycles(flows)])


def _failing(checks: Sequence[Callable[[], None]]) -> Iterator[RightTimeError]:
    for check in checks:
        try:
            check()
        except FlowError as error:
            yield error
