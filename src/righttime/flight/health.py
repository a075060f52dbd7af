"""Health: what machines ask a service over HTTP.

In: GET requests for /healthz, /readyz and /metrics.
Out: whether the process lives, whether it takes work, and all metrics in Prometheus' text format.
Promise: asking changes nothing and needs no right; nothing secret is in an answer.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from righttime.errors import BadSetting
from righttime.status import Status
from righttime.telemetry import METRICS, get_log

log = get_log("flight")

_REQUEST_S = 10.0


class HealthServer:
    """A small HTTP server in a thread of its own."""

    def __init__(self, *, host: str, port: int, unready: Callable[[], str], status: Callable[[], Status]) -> None:
        """`unready` says why no work is taken, and nothing as long as it is."""
        handler = type("Handler", (_Handler,), {"unready": staticmethod(unready), "status": staticmethod(status)})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except (OSError, OverflowError) as error:
            raise BadSetting(name="metrics-port", reason=f"{host}:{port} cannot be listened on ({getattr(error, 'strerror', error)})") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="righttime-health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = _REQUEST_S
    unready: Callable[[], str]
    status: Callable[[], Status]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(HTTPStatus.OK, "ok\n")
        elif path == "/readyz":
            reason = self.unready()
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, f"{reason or 'ready'}\n")
        elif path == "/metrics":
            self._metrics()
        else:
            self._answer(HTTPStatus.NOT_FOUND, "ask for /healthz, /readyz or /metrics\n")

    def _metrics(self) -> None:
        try:
            series = {**METRICS.snapshot(), **status_series(self.status())}
        except Exception as error:  # a warehouse that is being closed has no status any more
            log.info("metrics.failed", error=repr(error))
            series = METRICS.snapshot()
        self._answer(HTTPStatus.OK, metrics_text(series), kind="text/plain; version=0.0.4; charset=utf-8")

    def _answer(self, code: HTTPStatus, text: str, *, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet: a probe every second is no event."""


def metrics_text(series: Mapping[str, float]) -> str:
    """Return series in Prometheus' text format."""
    lines: list[str] = []
    seen: set[str] = set()
    for name, value in sorted(series.items()):
        metric = name.partition("{")[0]
        if metric not in seen:
            seen.add(metric)
            lines.append(f"# TYPE {metric} {'counter' if metric.endswith('_total') else 'gauge'}")
        lines.append(f"{name} {value!r}")
    return "\n".join(lines) + "\n"


def status_series(status: Status) -> dict[str, float]:
    """Return a status as metrics."""
    return dict(_series(status))


def _series(status: Status) -> Iterator[tuple[str, float]]:
    yield "righttime_state", float(status.state)
    yield "righttime_state_durable", float(status.state_durable)
    yield "righttime_rows_unsafe", float(status.rows_unsafe)
    yield "righttime_log_bytes", float(status.log_bytes)
    yield "righttime_queries", float(status.queries)
    yield "righttime_commits_lost", float(status.commits_lost)
    yield "righttime_producers", float(len(status.producers))
    yield "righttime_unflushed_seconds", max((producer.waiting_s for producer in status.producers), default=0.0)
    for table in status.tables:
        label = f'{{table="{table.name}"}}'
        yield f"righttime_table_rows_hot{label}", float(table.rows_hot)
        yield f"righttime_table_rows_stored{label}", float(table.rows_stored)
        yield f"righttime_table_memory_bytes{label}", float(table.bytes_memory)
        yield f"righttime_table_spilled_bytes{label}", float(table.bytes_spilled)
        yield f"righttime_table_leased_bytes{label}", float(table.bytes_leased)
        yield f"righttime_table_lag_seconds{label}", float(table.lag_s)
    for flow in status.flows:
        label = f'{{flow="{flow.name}"}}'
        yield f"righttime_flow_running{label}", float(flow.running)
        yield f"righttime_flow_jobs_waiting{label}", float(flow.jobs_waiting)
        yield f"righttime_flow_rows_waiting{label}", float(flow.rows_waiting)
        yield f"righttime_flow_lag_seconds{label}", float(flow.lag_s)
