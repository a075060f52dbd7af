"""What righttime says about itself: events as structured logs, and metrics under Prometheus names.

In: `get_log(name)` and `METRICS` in every part above.
Out: standard `logging` records of the logger "righttime" with the event's fields as extras; `Metrics.snapshot()`.
Promise: silent until `configure()` or the application's own logging set-up asks for output; metrics never grow without bound.
"""

import logging
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

import structlog

from righttime.errors import BadSetting

ROOT = "righttime"
SERIES_MAX = 10_000
LEVELS = ("debug", "info", "warning", "error", "critical")

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

# A library stays quiet: without a handler of its own, logging would print warnings to stderr.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


def get_log(name: str) -> structlog.stdlib.BoundLogger:
    """Return the event log of one part: `get_log("catalyst").info("flush.done", table="sale", rows=3)`."""
    log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"{ROOT}.{name}"),
        processors=[structlog.stdlib.filter_by_level, _keep_reserved_fields, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return log


def configure(level: str = "info", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Print events from `level` up to `stream` (default stderr), one per line; a second call replaces the first."""
    if level.lower() not in LEVELS:
        raise BadSetting(name="log level", reason=f"{level!r} is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name(f"{ROOT}.configured")
    handler.setFormatter(_formatter(json=json, colors=(stream or sys.stderr).isatty()))
    logger = logging.getLogger(ROOT)
    for old in [known for known in logger.handlers if known.get_name() == handler.get_name()]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())


def _formatter(*, json: bool, colors: bool) -> logging.Formatter:
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer(default=str) if json else structlog.dev.ConsoleRenderer(colors=colors)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ExtraAdder(),
            _drop_formatted,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, renderer],
    )


def _keep_reserved_fields(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # logging refuses extras that are named like fields of its own record, such as "name" or "process".
    return {f"{key}_" if key in _RESERVED and key not in ("exc_info", "stack_info") else key: value for key, value in event.items()}


def _drop_formatted(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # A formatter of somebody else's, Spark's for one, leaves its work in the record that it shares with us.
    for name in ("message", "asctime"):
        event.pop(name, None)
    return event


class Metric:
    """One named number, or one per set of labels; made by `Metrics.counter` or `Metrics.gauge`."""

    def __init__(self, name: str, *, description: str, lock: threading.Lock, series_max: int) -> None:
        self.name = name
        self.description = description
        self._lock = lock
        self._series_max = series_max
        self._values: dict[tuple[tuple[str, str], ...], float] = {}

    def value(self, **labels: str) -> float:
        """Return the number for these labels, 0.0 if none was ever noted."""
        with self._lock:
            return self._values.get(_label_key(labels), 0.0)

    def samples(self) -> dict[str, float]:
        """Return all numbers of this metric, under their Prometheus series names."""
        with self._lock:
            return {self.name + _braces(key): value for key, value in self._values.items()}

    def _note(self, labels: Mapping[str, str], value: float, *, add: bool) -> None:
        key = _label_key(labels)
        with self._lock:
            if key not in self._values and len(self._values) >= self._series_max:
                key = (("series", "other"),)  # the sum stays right when labels run over the bound
            self._values[key] = self._values.get(key, 0.0) + value if add else value


class Counter(Metric):
    """A number that only grows; its name ends in `_total`."""

    def inc(self, amount: float = 1.0, **labels: str) -> None:
        """Add `amount`, which is not negative."""
        assert amount >= 0, "a counter only grows"
        self._note(labels, amount, add=True)


class Gauge(Metric):
    """A number that goes up and down."""

    def set(self, value: float, **labels: str) -> None:
        """Replace the number."""
        self._note(labels, value, add=False)

    def add(self, amount: float, **labels: str) -> None:
        """Add `amount`, negative to subtract."""
        self._note(labels, amount, add=True)


class Metrics:
    """All metrics of one process or one test; safe to call from any thread."""

    def __init__(self, *, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._lock = threading.Lock()
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str, *, description: str = "") -> Counter:
        """Return the counter of this name, made on first use."""
        assert name.endswith("_total"), "a counter's name ends in _total"
        metric = self._metric(Counter, name, description)
        assert isinstance(metric, Counter)
        return metric

    def gauge(self, name: str, *, description: str = "") -> Gauge:
        """Return the gauge of this name, made on first use."""
        metric = self._metric(Gauge, name, description)
        assert isinstance(metric, Gauge)
        return metric

    def snapshot(self) -> dict[str, float]:
        """Return every series and its number, sorted by name: `{'righttime_rows_total{table="sale"}': 3.0}`."""
        with self._lock:
            metrics = list(self._metrics.values())
        return dict(sorted(item for metric in metrics for item in metric.samples().items()))

    def _metric(self, kind: type[Metric], name: str, description: str) -> Metric:
        assert _METRIC_NAME.fullmatch(name), f"{name!r} is not a Prometheus name"
        with self._lock:
            metric = self._metrics.get(name)
            if metric is None:
                metric = self._metrics[name] = kind(name, description=description, lock=threading.Lock(), series_max=self._series_max)
            return metric


METRICS = Metrics()


def _label_key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _braces(key: tuple[tuple[str, str], ...]) -> str:
    if not key:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in key) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
