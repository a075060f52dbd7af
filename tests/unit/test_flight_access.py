"""Tokens, scopes and who is on this machine."""

from pathlib import Path

import pytest

import righttime as rt
from righttime.errors import AccessDenied, BadSetting, NotAWarehouse
from righttime.flight.access import EVERYTHING, READ, WRITE, Bearer, Grant, Tokens, check_exposure, is_loopback
from righttime.flight.desk import Desk
from righttime.flight.transport import Target

SECRET = "0123456789abcdef-secret"


def tokens(folder: Path, text: str, *, mode: int = 0o600) -> Tokens:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return Tokens.from_file(path)


def test_a_token_grants_its_scopes(tmp_path: Path) -> None:
    """One token on a line may do everything; with scopes, those; a name is for the log."""
    known = tokens(tmp_path, f"# comment\n\n{SECRET}1\nread {SECRET}2\nloader write {SECRET}3\n")
    granted = {number: known.grant(f"Bearer {SECRET}{number}") for number in range(5)}
    assert [granted[number].scopes if granted[number] else None for number in (1, 2, 3)] == [{READ, WRITE}, {READ}, {WRITE}]  # type: ignore[union-attr]
    assert (granted[0], granted[4], known.grant(None), known.grant("")) == (None, None, None, None)
    assert granted[3] is not None and granted[3].name == "loader"
    with pytest.raises(AccessDenied, match="no read scope"):
        granted[3].require(READ, action="read")
    assert SECRET not in repr(known) + repr(granted)


def test_a_refusal_is_told_in_words(tmp_path: Path) -> None:
    """Not by the names that calls have on the way."""
    with rt.open(tmp_path / "wh") as wh:
        desk, guest = Desk(wh, wh._writer("test")), Grant("guest", frozenset({READ}))
        for action, grant, words in (
            ("hello", None, "refuses to let you in: the call carries no token"),
            ("create_table", guest, "refuses to create a table: the token 'guest' has no write scope"),
            ("session.open", guest, "refuses to open a producer"),
            ("session.flush", guest, "refuses to take rows"),
        ):
            with pytest.raises(AccessDenied, match=words):
                desk._admitted(action, grant, lambda allowed: None)


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", f"a b c {SECRET}\n", f"admin {SECRET}\n"])
def test_a_bad_token_file_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    """An error names the line, never the token."""
    with pytest.raises(BadSetting) as caught:
        tokens(tmp_path, text)
    assert SECRET not in str(caught.value)


def test_a_token_file_for_everybody_is_refused(tmp_path: Path) -> None:
    """Others must not be able to read it."""
    with pytest.raises(BadSetting, match="chmod 600"):
        tokens(tmp_path, SECRET, mode=0o640)


@pytest.mark.parametrize(("host", "here"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("db", False)])
def test_without_tokens_only_this_machine_is_let_in(host: str, here: bool) -> None:
    """No token: everything is allowed, from here only."""
    assert is_loopback(host) == here
    assert Tokens().grant(None) == EVERYTHING
    if here:
        check_exposure(host, Tokens())
    else:
        with pytest.raises(BadSetting, match="token"):
            check_exposure(host, Tokens())


def test_a_bearer_does_not_show_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the argument, a file or the environment; odd characters are refused."""
    monkeypatch.delenv("RIGHTTIME_TOKEN", raising=False)
    held = tmp_path / "token"
    held.write_text(f"loader read,write {SECRET}\n")
    for bearer in (Bearer(SECRET), Bearer.given(SECRET, None), Bearer.given(None, held)):
        assert bearer.headers() == [(b"authorization", f"Bearer {SECRET}".encode())]
        assert SECRET not in repr(bearer)
    assert Bearer.given(None, None).headers() == []
    for wrong in ("", "a\nb", "é"):
        with pytest.raises(BadSetting):
            Bearer(wrong)
    with pytest.raises(BadSetting):
        Bearer.given(None, tmp_path / "nothing")


def test_addresses_are_read_and_odd_ones_refused() -> None:
    """righttime://host[:port], and nothing else."""
    assert str(Target.parse("righttime://db")) == "righttime://db:8815"
    assert Target.parse("righttime://[::1]:9").location == "grpc+tcp://[::1]:9"
    assert Target.parse("righttime://db:9", tls=True).location == "grpc+tls://db:9"
    for wrong in ("righttime://", "righttime://db:x", "righttime://db/x", "righttime://db?x=1", "righttime://u:p@db", "http://db"):
        with pytest.raises(NotAWarehouse) as caught:
            Target.parse(wrong)
        assert "u:p" not in str(caught.value)
    with pytest.raises(BadSetting, match="certificate"):
        Target.parse("righttime://db", tls_ca="/nowhere")


def test_certificates_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how the command line gets them; what a program says itself counts more."""
    (tmp_path / "ours.pem").write_bytes(b"ours")
    (tmp_path / "theirs.pem").write_bytes(b"theirs")
    monkeypatch.setenv("RIGHTTIME_TLS_CA", str(tmp_path / "ours.pem"))
    assert Target.parse("righttime://db") == Target("db", 8815, True, b"ours")
    assert Target.parse("righttime://db", tls_ca=tmp_path / "theirs.pem") == Target("db", 8815, True, b"theirs")
    assert Target.parse("righttime://db", tls=True) == Target("db", 8815, True, None)
    monkeypatch.setenv("RIGHTTIME_TLS_CA", "system")
    assert Target.parse("righttime://db") == Target("db", 8815, True, None)
    monkeypatch.setenv("RIGHTTIME_TLS_CA", "")
    assert Target.parse("righttime://db") == Target("db", 8815, False, None)
