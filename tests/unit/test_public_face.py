"""The public face: a small, sorted list that is exactly what a user can reach and what is written down."""

import inspect
import tomllib
from pathlib import Path
from types import ModuleType

import righttime


def test_the_public_names_are_sorted() -> None:
    """A sorted list shows at a glance what a change adds."""
    assert righttime.__all__ == sorted(righttime.__all__)


def test_the_public_names_are_what_is_really_there() -> None:
    """Nothing else can be reached without going into a module, and nothing on the list is missing."""
    public = {name for name, value in vars(righttime).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert public == set(righttime.__all__)


def test_the_public_face_stays_small() -> None:
    """About thirty names, so that a newcomer can read the list."""
    assert len(righttime.__all__) <= 35


def test_every_public_name_explains_itself() -> None:
    """`help()` on any of them, and on any public method of theirs, has something to say."""
    silent = [name for name in righttime.__all__ if not inspect.getdoc(getattr(righttime, name))]
    for name in ("Warehouse", "Producer", "Answer", "Receipt"):
        silent += [f"{name}.{member}" for member, value in inspect.getmembers(getattr(righttime, name)) if not member.startswith("_") and not _explained(value)]
    assert silent == []


def _explained(value: object) -> bool:
    return not (callable(value) or isinstance(value, property)) or bool(inspect.getdoc(value))


def test_the_version_is_the_one_that_is_installed_or_being_built() -> None:
    """`righttime.__version__` and pyproject.toml agree."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert righttime.__version__ == project["version"]
