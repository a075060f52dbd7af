"""Access: who may call the service, and for what.

In: a file of tokens; the headers of each call.
Out: grants with scopes.
Promise: tokens are compared in constant time and are in no log, message, text of an object or process argument; without any token the service
listens on this machine only.
"""

import hashlib
import hmac
import ipaddress
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from righttime.errors import AccessDenied, BadSetting

READ, WRITE = "read", "write"
_SCOPES = frozenset((READ, WRITE))
_TOKEN_LENGTH_MIN = 16
_TOKENS_MAX = 1000
HEADER = "authorization"
_IN_WORDS = {
    "hello": "let you in",
    "catalog": "tell its tables",
    "database": "tell its database",
    "session.open": "open a producer",
    "snapshot.take": "answer a query",
    "group.take": "answer a query",
    "create_table": "create a table",
    "group.claim": "create a table",
    "create_view": "create a view",
    "group.view": "create a view",
    "receipt": "show a receipt",
    "receipts": "list receipts",
    "verify": "verify a receipt",
    "status": "tell its status",
    "explain": "explain a query",
    "losses": "tell its losses",
    "materialize": "materialize",
    "adopt": "adopt a table",
    "gc": "collect files",
    "streams": "tell its streams",
    "stream.schema": "open a stream",
    "stream.cut": "show the commits of a stream",
    "stream.rows": "show the rows of a stream",
    "stream.mark": "take changes",
    "stream.create": "create a stream",
    "stream.tap": "tap a table",
    "stream.append": "take changes",
    "stream.heartbeat": "take a heartbeat",
    "stream.replay": "replay dead letters",
    "stream.discard": "discard dead letters",
}


@dataclass(frozen=True, slots=True)
class Grant:
    """What one caller may do; `name` is for logs."""

    name: str
    scopes: frozenset[str]

    def require(self, scope: str, *, action: str) -> None:
        """Raise `AccessDenied` if the scope is missing."""
        if scope not in self.scopes:
            raise AccessDenied(action=action, reason=f"the token {self.name!r} has no {scope} scope")


def in_words(action: str) -> str:
    """Return what a call asks for, as users know it and not as it is called on the way."""
    return _IN_WORDS.get(action, "take rows" if action.startswith("session.") else "answer this call")


EVERYTHING = Grant("anyone on this machine", _SCOPES)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The known tokens, as digests; without any, everybody who can reach the service may do everything."""

    _grants: Sequence[tuple[bytes, Grant]] = field(default=(), repr=False)

    @classmethod
    def from_file(cls, path: Path) -> "Tokens":
        """Read lines of `TOKEN`, `SCOPES TOKEN` or `NAME SCOPES TOKEN`; scopes are read, write or read,write. # begins a comment."""
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise BadSetting(name="token-file", reason=f"{path} can be read by others; chmod 600 it")
            lines = path.read_text().splitlines()
        except (OSError, UnicodeError) as error:
            raise BadSetting(name="token-file", reason=f"{path} cannot be read ({type(error).__name__})") from error
        grants = [_grant(line.split(), number, path) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
        if not grants or len(grants) > _TOKENS_MAX:
            raise BadSetting(name="token-file", reason=f"{path} has {len(grants)} tokens; 1 to {_TOKENS_MAX} are possible")
        return cls(tuple(grants))

    def __bool__(self) -> bool:
        return bool(self._grants)

    def grant(self, header: str | None) -> Grant | None:
        """Return what the bearer of a header may do; None if nothing. Takes the same time for every wrong token."""
        if not self._grants:
            return EVERYTHING
        given = _digest((header or "").removeprefix("Bearer ").strip())
        found = None
        for digest, grant in self._grants:
            if hmac.compare_digest(digest, given):
                found = grant
        return found


def _grant(words: list[str], number: int, path: Path) -> tuple[bytes, Grant]:
    scopes = frozenset(words[-2].split(",")) if len(words) > 1 else _SCOPES
    if len(words) > 3 or not scopes <= _SCOPES:
        raise BadSetting(name="token-file", reason=f"line {number} of {path} is not NAME SCOPES TOKEN with scopes read, write or read,write")
    if len(words[-1]) < _TOKEN_LENGTH_MIN:
        raise BadSetting(name="token-file", reason=f"the token in line {number} of {path} is shorter than {_TOKEN_LENGTH_MIN} characters")
    return _digest(words[-1]), Grant(words[0] if len(words) == 3 else f"line {number}", scopes)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tokens: Tokens) -> None:
    """Refuse to let other machines in without a token."""
    if not tokens and not is_loopback(host):
        raise BadSetting(name="host", reason=f"without a token the service listens on this machine only, and {host} is reached from others; give --token-file")


class Bearer:
    """A client's token; it shows itself to nobody but the service."""

    __slots__ = ("_token",)

    def __init__(self, token: str | None) -> None:
        if token is not None and (not token.isascii() or not token.isprintable() or not token.strip()):
            raise BadSetting(name="token", reason="a token is a line of printable ASCII characters")
        self._token = None if token is None else token.strip()

    @classmethod
    def given(cls, token: str | None, token_file: str | os.PathLike[str] | None) -> "Bearer":
        """Take the token from the argument, a file, or `RIGHTTIME_TOKEN`."""
        if token is not None and token_file is not None:
            raise BadSetting(name="token", reason="token and token_file are both given; give one")
        if token_file is not None:
            try:
                return cls(Path(token_file).read_text().split()[-1])
            except (OSError, UnicodeError, IndexError) as error:
                raise BadSetting(name="token_file", reason=f"{token_file} holds no token ({type(error).__name__})") from error
        return cls(token if token is not None else os.environ.get("RIGHTTIME_TOKEN") or None)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that carry it."""
        return [] if self._token is None else [(HEADER.encode(), f"Bearer {self._token}".encode())]

    def __repr__(self) -> str:
        return "<Bearer>"


class GrantMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
    """What the caller of one call may do, for the handlers."""

    def __init__(self, grant: Grant | None) -> None:
        super().__init__()
        self.grant = grant


class GrantFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at the headers of each call. It refuses nobody itself: a ticket is a right of its own."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> GrantMiddleware:
        given = next((values[0] for name, values in headers.items() if name.lower() == HEADER and values), None)
        return GrantMiddleware(self._tokens.grant(given if isinstance(given, str) else None))
