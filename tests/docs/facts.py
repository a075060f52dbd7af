"""What the reference must say, read from the code: the public face, settings, errors, commands.

In: the package.
Out: table rows and signatures as the reference pages write them.
Promise: one way to write each fact, so that a page can be compared with it word by word.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from pydantic_core import PydanticUndefined

import righttime
from righttime import errors
from righttime.cli import app
from righttime.flows.running import RunningFlow
from righttime.pipeline.flow import Step
from righttime.query.standing import StandingSnapshot
from righttime.settings import MIB, Settings

CLASSES = ("Warehouse", "Producer", "Answer", "Receipt", "Verification", "Commit", "SourceCut", "Policy", "Flow", "Stream")
RETURNED = (Step, RunningFlow, StandingSnapshot)
"""Classes that users hold and never name."""
_UNITS = (
    ("_bytes", "bytes"),
    ("bytes_max", "bytes"),
    ("bytes", "bytes"),
    ("_s", "seconds"),
    ("_dir", "path"),
    ("_master", "text"),
    ("_conf", "names and values"),
)


def signature(name: str, member: Any, *, owner: str = "") -> str:
    """Return a callable as the reference writes it: no annotations, no self."""
    shown = f"{owner}.{name}" if owner else name
    if isinstance(member, property) or not callable(member):
        return shown
    parameters = [one.replace(annotation=inspect.Parameter.empty) for one in inspect.signature(member).parameters.values() if one.name not in ("self", "cls")]
    return shown + str(inspect.Signature(parameters))


def api() -> set[str]:
    """Return every signature of the public face: functions, policies, and the public members of the classes."""
    functions = ("open", "connect", "expr", "Immediate", "OnDemand", "LoadAware", "Every", "Flow")
    kinds = [*(getattr(righttime, name) for name in CLASSES), *RETURNED]
    return {signature(name, getattr(righttime, name)) for name in functions} | {one for kind in kinds for one in _members(kind)}


def _members(kind: type) -> Iterator[str]:
    fields = getattr(kind, "__dataclass_fields__", {})
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if not name.startswith("_") and name not in fields:
            yield signature(name, member if isinstance(member, property) else getattr(kind, name), owner=kind.__name__)


def settings_rows() -> list[list[str]]:
    """Return the rows of the table of settings."""
    return [
        [f"`{name}`", _default(name, field.get_default(call_default_factory=True)), _unit(name), f"`RIGHTTIME_{name.upper()}`", field.description or ""]
        for name, field in Settings.model_fields.items()
    ]


def _default(name: str, value: Any) -> str:
    assert value is not PydanticUndefined
    if value is None or value == {}:
        return "none"
    if isinstance(value, int) and _unit(name) == "bytes" and value % MIB == 0:
        return f"{value} ({value // MIB} MiB)"
    return f"`{value}`" if isinstance(value, str | Path) else str(value)


def _unit(name: str) -> str:
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return unit
    return name.removesuffix("_max").rpartition("_")[2]


def error_rows() -> list[list[str]]:
    """Return the rows of the table of errors, in the order of the tree: code, class, retryable, meaning, way out."""
    return [[f"`{kind.code}`", f"`{kind.__name__}`", "yes" if kind.retryable else "no", *_meaning(kind)] for kind in _tree(errors.RightTimeError)]


def _tree(kind: type[errors.RightTimeError]) -> Iterator[type[errors.RightTimeError]]:
    yield kind
    drawn = re.findall(r"\w+", errors.__doc__ or "")
    children = [child for child in kind.__subclasses__() if child.__module__.startswith(f"{errors.__name__}.")]
    for child in sorted(children, key=lambda one: drawn.index(one.__name__)):
        yield from _tree(child)


def _meaning(kind: type[errors.RightTimeError]) -> tuple[str, str]:
    """Split a class's docstring into what happened and its last sentence, the way out; fields of the context in braces."""
    text = re.sub(r"\{(\w+)[^}]*\}", r"{\1}", " ".join((kind.__doc__ or "").split())).replace("|", r"\|")
    text = text.replace("{way_out}", "The message ends with the way out.")
    happened, _, way_out = re.sub(r"\.\s+(?=[A-Z][^.]*(?:\.(?!\s)[^.]*)*\.$)", "\x00", text, count=1).partition("\x00")
    return f"{happened.rstrip('.')}.", way_out


def commands() -> dict[str, set[str]]:
    """Return every command of the command line and the options and arguments it takes."""
    return dict(_commands(typer.main.get_command(app), "righttime"))


def _commands(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
    yield name, {word for parameter in command.params for word in _words(parameter)}
    for child in getattr(command, "commands", {}).values():
        yield from _commands(child, f"{name} {child.name}")


def _words(parameter: Any) -> list[str]:
    return [*parameter.opts] if parameter.param_type_name == "option" else [str(parameter.metavar or parameter.name).upper()]
