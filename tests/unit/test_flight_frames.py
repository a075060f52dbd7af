"""Frames and failures: what is written is read, and nothing else is."""

import pickle
import re
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime import errors
from righttime.errors import BadMessage, MessageTooLarge, RightTimeError, ServiceFailed
from righttime.flight.failures import failure_from_text, failure_of, failure_record, failure_text
from righttime.flight.frames import Message, read_frame, write_frame

plain = st.recursive(st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3), max_leaves=5)
headers = st.dictionaries(st.text(max_size=8).filter(lambda name: name != "_parts"), plain, max_size=5)


@given(headers, st.lists(st.binary(max_size=40), max_size=5))
def test_a_frame_is_read_as_it_was_written(header: dict[str, object], parts: list[bytes]) -> None:
    """Header and parts come back, each part aligned for Arrow."""
    frame = write_frame(header, parts)
    message = read_frame(frame, bytes_max=10_000)
    assert {name: value for name, value in message.header.items() if name != "_parts"} == header
    assert [part.to_pybytes() for part in message.parts] == parts
    assert all((part.address - frame.address) % 8 == 0 for part in message.parts if part.size)


@given(st.binary(max_size=100) | st.builds(lambda head, rest: b"RTF1" + head + rest, st.binary(min_size=4, max_size=4), st.binary(max_size=60)))
def test_anything_else_is_refused_with_a_code(noise: bytes) -> None:
    """No bytes raise anything but our own errors."""
    try:
        read_frame(noise, bytes_max=10_000)
    except BadMessage:
        pass


@given(headers, st.lists(st.binary(max_size=40), max_size=3), st.data())
def test_a_shortened_frame_is_refused(header: dict[str, object], parts: list[bytes], data: st.DataObject) -> None:
    """A frame that lost its end is no frame, except for the padding behind its last part."""
    whole = write_frame(header, parts).to_pybytes()
    needed = len(whole) - (-len(parts[-1]) % 8 if parts else 0)
    with pytest.raises(BadMessage):
        read_frame(whole[: data.draw(st.integers(0, needed - 1))], bytes_max=10_000)


def test_bounds_hold_for_writers_and_readers() -> None:
    """A message over the bound is neither written nor read."""
    with pytest.raises(MessageTooLarge):
        write_frame({}, [b"x" * 100], bytes_max=100)
    with pytest.raises(MessageTooLarge):
        read_frame(write_frame({}, [b"x" * 100]), bytes_max=100)


@pytest.mark.parametrize(
    ("header", "accessor"),
    [
        ({"n": "1"}, "number"),
        ({"n": True}, "number"),
        ({"n": 2**64}, "number"),
        ({}, "text"),
        ({"n": 1}, "flag"),
        ({"n": {}}, "listed"),
        ({"n": -1.0}, "seconds"),
    ],
)
def test_accessors_refuse_what_is_of_another_type(header: dict[str, object], accessor: str) -> None:
    """A handler that asks for a type gets it or raises a coded error."""
    with pytest.raises(BadMessage):
        getattr(Message(header), accessor)("n")


def _kinds() -> list[type[RightTimeError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RightTimeError)]


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
def test_every_error_crosses_with_class_context_and_message(kind: type[RightTimeError]) -> None:
    """An error on the other side is the error on this side."""
    names = set(re.findall(r"\{(\w+)", kind.__doc__ or ""))
    error = kind(**{name: 1.5 if name.endswith("_s") else "it's" for name in names})
    for crossed in (failure_of(failure_record(error)), failure_from_text(failure_text(error))):
        assert crossed is not None
        assert (type(crossed), crossed.context, str(crossed)) == (kind, error.context, str(error))


def test_values_that_json_does_not_know_look_the_same() -> None:
    """A context may hold anything; its message reads the same on the other side, and it can be pickled."""
    error = errors.BadFreshness(value=timedelta(seconds=-1), what="freshness", reason=Decimal("1"))
    crossed = failure_of(failure_record(error))
    assert "datetime.timedelta(days=-1, seconds=86399)" in str(crossed)
    assert str(pickle.loads(pickle.dumps(crossed))) == str(crossed)


def test_errors_that_are_not_ours_cross_without_their_text() -> None:
    """The text of a stray exception may hold a secret."""
    record = failure_record(ValueError("secret"))
    assert "secret" not in str(record)
    assert isinstance(failure_of(record), ServiceFailed)


@pytest.mark.parametrize("record", [None, 1, {}, {"code": "x"}, {"code": "never.heard", "context": {"a": 1}}, {"context": {}}])
def test_errors_of_another_version_become_a_named_one(record: object) -> None:
    """A client that is older than its service still raises something with a code."""
    assert failure_of(record).code == "service.failed"
    assert failure_from_text(b"no json") is None
