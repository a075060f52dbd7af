"""How a reference engine runs, and how it ends.

In: a test's wishes.
Out: frozen options; the errors of the engine.
Promise: every wait has a time-out here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Gate = Callable[[str, str, int], None]


class Stopped(Exception):
    """The engine, this generation of its operators, or this query has ended."""


class EngineFailed(Exception):
    """An operator failed more often than jobs may be run again."""


def _no_gate(who: str, point: str, tid: int) -> None:
    """Hold nobody."""


@dataclass(frozen=True)
class Options:
    """How an engine runs.

    `mode`: pipelined; seq runs one job after the other; nrt cuts at every commit, and queries do not wait. `gate(who, point, job)` is called at the points of
    a run, so that a test can hold a thread there. `lagging`: the watermark moves only by `advance`; else the sources have always delivered everything.
    """

    mode: Literal["pipelined", "seq", "nrt"] = "pipelined"
    acknowledge: bool = True
    gate: Gate = _no_gate
    lagging: bool = False
    pipe_rows_max: int = 1000
    spill: bool = True
    pipe_timeout_s: float = 10.0
    timeout_s: float = 10.0
    zone_timeout_s: float = 10.0
    begin_timeout_s: float = 10.0
    restarts_max: int = 0
    stream_rows_max: int | None = None
    idle: bool = False
