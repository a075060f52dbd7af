"""`righttime serve`: one warehouse as a service for producers and queries of other processes and machines.

In: the warehouse, where to listen, who may call.
Out: a service until SIGTERM or Ctrl-C; the address on standard output once it takes work.
Promise: a stop keeps everything committed and ends with exit code 0; without tokens nobody from another machine gets in.
"""

import signal
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from righttime.cli.console import err
from righttime.client import Warehouse, open
from righttime.errors import BadSetting, NotAWarehouse
from righttime.flight.access import Tokens, is_loopback
from righttime.flight.health import HealthServer
from righttime.flight.server import FlightService, check_address
from righttime.flight.warehouse import is_service

SIGNAL_S = 0.5
"""How often somebody who waits for a signal looks: Python runs its handler in the main thread only, and the signal may have woken another one."""

TokenFile = Annotated[Path | None, typer.Option(help="File of lines NAME SCOPES TOKEN; needed to let other machines in.", show_default=False)]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate chain in PEM form; with it all traffic is encrypted.", show_default=False)]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key in PEM form.", show_default=False)]


@dataclass(frozen=True)
class Door:
    """Where a service listens, and whom it lets in."""

    host: str
    port: int
    tokens: Tokens
    tls: tuple[bytes, bytes] | None


def serve(
    target: Annotated[str, typer.Argument(metavar="PATH|postgresql://…", help="The warehouse; a new or empty folder becomes one.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8815,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    metrics_host: Annotated[str, typer.Option(help="The address for /healthz, /readyz and /metrics.")] = "127.0.0.1",
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port for them; none if not given, 0 takes a free one.", show_default=False)
    ] = None,
) -> None:
    """Serve a warehouse over Arrow Flight until SIGTERM or Ctrl-C. Clients open righttime://HOST:PORT."""
    if is_service(target):
        raise NotAWarehouse(path=target, reason="a service has it open already, and only the one who has it open can serve it")
    door = door_of(host, port, token_file, tls_cert, tls_key)
    stop = stop_on_signals()
    with open(target) as warehouse:
        service = listen(warehouse, door)
        health = None
        try:
            if metrics_port is not None:
                health = HealthServer(host=metrics_host, port=metrics_port, unready=lambda: _unready(service, warehouse), status=warehouse.status)
            if health is not None:
                typer.echo(f"Health and metrics on port {health.port}")
            say_where(service, door)
            while not stop.wait(timeout=SIGNAL_S):
                pass
        finally:
            service.stop()
            if health is not None:
                health.stop()


def door_of(host: str, port: int, token_file: Path | None, tls_cert: Path | None, tls_key: Path | None) -> Door:
    """Read the files of a door, and try it: what keeps it from opening is told before a warehouse is opened or a flow begins."""
    door = Door(host.strip("[]"), port, Tokens() if token_file is None else Tokens.from_file(token_file), _certificate(tls_cert, tls_key))
    check_address(door.host, door.port, door.tokens)
    return door


def listen(warehouse: Warehouse, door: Door) -> FlightService:
    """Let others use an open warehouse, until the service is stopped."""
    return FlightService(warehouse, warehouse._writer("serve"), host=door.host, port=door.port, tokens=door.tokens, tls=door.tls)


def _unready(service: FlightService, warehouse: Warehouse) -> str:
    """Say why a service takes no work, or nothing if it does."""
    if not service.ready:
        return "stopping"
    halted = warehouse._writer("serve").catalyst.halted
    return "" if halted is None else f"{halted.code}: {halted}"


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set, from now on."""
    stop = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
    return stop


def _certificate(cert: Path | None, key: Path | None) -> tuple[bytes, bytes] | None:
    if (cert is None) != (key is None):
        raise BadSetting(name="tls-cert, tls-key", reason="a certificate and its key come together; give both or none")
    if cert is None or key is None:
        return None
    try:
        found = cert.read_bytes(), key.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
        return found
    except ssl.SSLError as error:
        raise BadSetting(name="tls-cert, tls-key", reason=f"{cert} and {key} are no certificate and its key without a password ({error.reason})") from error
    except OSError as error:
        raise BadSetting(name="tls-cert, tls-key", reason=f"{error.filename} cannot be read ({error.strerror})") from error


def say_where(service: FlightService, door: Door) -> None:
    """Print the address as the last line: whoever waits for it may connect."""
    if not door.tokens:
        err().print("No token is configured: everybody on this machine may read and write, nobody from another machine may connect.")
    if not service.tls and not is_loopback(service.host):
        err().print("No certificate is configured: rows and tokens cross the network in the clear.")
    typer.echo(f"Serving {service.address}")
