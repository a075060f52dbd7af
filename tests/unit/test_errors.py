"""The errors are one tree: drawn as it is, complete at `righttime.errors`, and able to travel between processes."""

import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator

import pytest

from righttime import errors
from righttime.errors import RightTimeError


def _family(kind: type[RightTimeError]) -> Iterator[type[RightTimeError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith(f"{errors.__name__}."):
            yield from _family(child)


for module in pkgutil.iter_modules(errors.__path__, f"{errors.__name__}."):
    importlib.import_module(module.name)
EVERY = sorted(set(_family(RightTimeError)), key=lambda kind: kind.__name__)


def test_every_error_is_found_in_the_package() -> None:
    """An error may be defined in any module; `from righttime.errors import …` finds it, and clients know its code."""
    assert sorted(errors.__all__) == [kind.__name__ for kind in EVERY]
    assert all(getattr(errors, kind.__name__) is kind for kind in EVERY)


def test_the_tree_is_drawn_as_it_is() -> None:
    """Each class has one line, below its parent's; a line has the code and says whether the same call may succeed later."""
    drawn = re.findall(r"^    ([ │├└─]*)(\w+)(?: +(.*))?$", errors.__doc__ or "", re.MULTILINE)
    parents: dict[int, str] = {}
    seen = []
    for branch, name, text in drawn:
        kind = getattr(errors, name)
        depth = len(branch) // 4
        parents[depth] = name
        seen.append(name)
        assert depth == 0 or parents[depth - 1] == kind.__base__.__name__
        assert ("(retryable)" in text) == kind.retryable
        assert "." not in kind.code or text.split()[0] == kind.code
    assert sorted(seen) == [kind.__name__ for kind in EVERY]


def test_codes_are_unique() -> None:
    """A code names one class, so that programs can compare with it and clients can make the class again."""
    assert len({kind.code for kind in EVERY}) == len(EVERY)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[RightTimeError]) -> None:
    """Errors cross processes with their class, their facts and their message."""
    error = kind(table="sale", reason="it is so")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.context, str(again)) == (kind, error.context, str(error))
