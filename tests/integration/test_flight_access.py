"""Who gets in: tokens, scopes and certificates, and that no secret shows anywhere."""

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as flight
import pytest

from righttime.errors import AccessDenied, BadSetting, LeaseExpired, NotAWarehouse, ServiceUnreachable, SessionLost
from righttime.flight.frames import write_frame
from righttime.flight.warehouse import open_remote
from tests.support.services import Service, make_certificate, make_expired_certificate

READER, LOADER, OTHER = "reader-secret-0123456789", "loader-secret-0123456789", "other-secret-01234567890"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("access")
    tokens = folder / "tokens"
    tokens.write_text(f"# who what token\nreports read {READER}\nloader read,write {LOADER}\nother read,write {OTHER}\n")
    tokens.chmod(0o600)
    with Service(folder / "wh", "--token-file", tokens) as running:
        with running.connect(token=LOADER) as wh:
            wh.create_table("sale", "sku INT")
        yield running


def test_without_a_token_or_with_a_wrong_one_nobody_gets_in(service: Service) -> None:
    """Each wrong token is refused, and the refusal does not show it."""
    for token in (None, "wrong", "Bearer x", LOADER[:-1], LOADER + "x", "0" * 10_000):
        with pytest.raises(AccessDenied) as caught:
            service.connect(token=token)
        assert token is None or token not in str(caught.value)


def test_scopes_are_kept_apart(service: Service) -> None:
    """A reader reads and does not write; every writing call is refused."""
    with service.connect(token=READER) as wh:
        assert wh.tables() == ["sale"]
        assert wh.read("sale").rows() == []
        for write in (
            lambda: wh.create_table("t", "a INT"),
            lambda: wh.create_view("v", "SELECT 1"),
            lambda: wh.producer(name="r"),
            wh.materialize,
            lambda: wh.adopt("sale"),
            wh.gc,
        ):
            with pytest.raises(AccessDenied, match="no write scope"):
                write()


def test_streams_are_read_with_one_scope_and_fed_with_the_other(service: Service) -> None:
    """A reader sees declarations, commits, changes and letters; whoever has no token sees nothing of a stream, also not by a ticket."""
    with service.connect(token=LOADER) as wh, service.connect(token=READER) as reading:
        wh.create_stream("event", "id INT", times="source").insert([{"id": 1}], time=5)
        event = reading.stream("event")
        assert (reading.streams(), event.last and event.last.number, event.changes().num_rows, event.dead_letters().num_rows) == (["event"], 1, 1, 0)
        for write in (
            lambda: reading.create_stream("other", "id INT"),
            lambda: event.insert([{"id": 2}], time=6),
            lambda: reading.append({"event": []}, time=6),
            lambda: event.heartbeat(7),
            event.replay,
            event.discard,
            lambda: reading.tap("sale"),
        ):
            with pytest.raises(AccessDenied, match="no write scope"):
                write()
        stranger = flight.FlightClient(reading._transport.target.location)
        with pytest.raises(flight.FlightUnauthenticatedError):
            stranger.do_get(flight.Ticket(write_frame({"stream": "event", "letters": True}).to_pybytes())).read_all()
        stranger.close()
        assert wh.stream("event").changes().num_rows == 1


def test_sessions_belong_to_the_token_that_opened_them(service: Service) -> None:
    """Knowing a session's id is not enough to commit in it."""
    with service.connect(token=LOADER) as wh, service.connect(token=OTHER) as stranger:
        load = wh.producer(name="till")
        session_id = load._session.session_id  # type: ignore[attr-defined]
        with pytest.raises(SessionLost):
            stranger._transport.call("session.rollback", {"session": session_id, "sequence": 99})
        load.insert("sale", (1,))
        load.commit()


def test_a_ticket_is_a_right_for_one_snapshot(service: Service) -> None:
    """Rows are given to whoever has the secret id of a held snapshot, and to nobody who guesses."""
    with service.connect(token=READER) as wh, pytest.raises(LeaseExpired):
        wh._transport.rows({"snapshot": "0" * 32, "table": "sale", "places": []})


def test_tokens_come_from_files_and_the_environment_and_show_nowhere(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three ways to give a token; none of them in a representation, a log or the arguments of a process."""
    held = tmp_path / "token"
    held.write_text(f"{LOADER}\n")
    with service.connect(token_file=held) as wh:
        assert LOADER not in repr(wh) + repr(wh._transport) + repr(vars(wh._transport))
    monkeypatch.setenv("RIGHTTIME_TOKEN", READER)
    with service.connect() as wh:
        assert wh.tables() == ["sale"]
    with pytest.raises(BadSetting):
        service.connect(token=LOADER, token_file=held)
    command = Path(f"/proc/{service.process.pid}/cmdline").read_bytes().decode()
    assert not any(secret in service.logs() + command for secret in (READER, LOADER, OTHER))


def test_without_tokens_other_machines_are_kept_out(tmp_path: Path) -> None:
    """The service refuses to listen on an address that others reach, and says what to do."""
    with pytest.raises(AssertionError, match="token-file"):
        Service(tmp_path / "wh", "--host", "0.0.0.0")


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Secrets in a file for everybody are no secrets."""
    tokens = tmp_path / "tokens"
    tokens.write_text(LOADER)
    tokens.chmod(0o644)
    with pytest.raises(AssertionError, match="chmod 600"):
        Service(tmp_path / "wh", "--token-file", tokens)


def test_certificates_are_checked(tmp_path: Path) -> None:
    """With the right certificate it works; with another one, with none, and in the clear it does not, and that is said at once."""
    certificate, key = make_certificate(tmp_path, "ours")
    wrong, _ = make_certificate(tmp_path, "theirs")
    with Service(tmp_path / "wh", "--tls-cert", certificate, "--tls-key", key) as service:
        with service.connect(tls_ca=certificate) as wh:
            wh.create_table("sale", "sku INT")
            with wh.producer(name="till") as load:
                load.insert("sale", (1,))
                load.commit()
            assert wh.read("sale").rows() == [(1,)]
        for options in ({"tls_ca": wrong}, {"tls": True}, {}):
            with pytest.raises(ServiceUnreachable) as caught:
                service.connect(reconnect_s=0.5, **options)
            assert "PRIVATE" not in str(caught.value)
        assert "RIGHTTIME_TLS_CA" in str(caught.value)  # the last of them spoke in the clear
    with Service(tmp_path / "wh") as plain, pytest.raises(ServiceUnreachable):
        plain.connect(tls_ca=certificate, reconnect_s=0.5)


@pytest.mark.parametrize("wrong", ["host", "date"])
def test_a_certificate_for_another_host_or_of_another_time_is_refused_at_once(tmp_path: Path, wrong: str) -> None:
    """Though the client trusts it: the name and the dates count, waiting cures neither, the error says so, and the service stays up."""
    certificate, key = (
        make_expired_certificate(tmp_path, "expired") if wrong == "date" else make_certificate(tmp_path, "elsewhere", hosts="DNS:elsewhere.example")
    )
    with Service(tmp_path / "wh", "--tls-cert", certificate, "--tls-key", key, "--metrics-port", "0") as service:
        begun_s = time.monotonic()
        with pytest.raises(ServiceUnreachable, match="no trusted connection") as caught:
            service.connect(tls_ca=certificate, reconnect_s=60)
        assert time.monotonic() - begun_s < 30
        assert {"host": "not in peer certificate", "date": "certificate has expired"}[wrong] in str(caught.value)
        assert caught.value.code == "service.unreachable" and "PRIVATE" not in str(caught.value)
        assert service.process.poll() is None
        assert urllib.request.urlopen(f"http://127.0.0.1:{service.health_port}/readyz").read() == b"ready\n"


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    """A certificate without its key, a key that is none, a file that is not there."""
    certificate, _ = make_certificate(tmp_path, "ours")
    garbage = tmp_path / "garbage"
    garbage.write_text("no key")
    halves: list[list[str | Path]] = [
        ["--tls-cert", certificate],
        ["--tls-cert", certificate, "--tls-key", garbage],
        ["--tls-cert", certificate, "--tls-key", tmp_path / "none"],
    ]
    for options in halves:
        with pytest.raises(AssertionError, match=r"setting\.bad"):
            Service(tmp_path / "wh", *options)


def test_addresses_hold_no_secrets() -> None:
    """A token in the address would be in every log; it is refused without being repeated."""
    for address in ("righttime://secret@host:1", "righttime://", "righttime://host:x", "righttime://host:1/path", "righttime://host:1?token=secret"):
        with pytest.raises(NotAWarehouse) as caught:
            open_remote(address)
        assert "secret@" not in str(caught.value)
