"""Client processes that cost little: each is forked from one process that has everything imported.

In: a function of a module and its arguments; the last argument of the function is its end of a pipe.
Out: the process, and the other end.
Promise: no process outlives its test.
"""

from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from tests.support.warm_python import FORKS, warm


class Client:
    """One process, and the pipe to it."""

    def __init__(self, work: Callable[..., None], *arguments: Any, name: str | None = None) -> None:
        warm()
        self.pipe, far = FORKS.Pipe()
        self.process = FORKS.Process(target=work, args=(*arguments, far), name=name, daemon=True)
        self.process.start()
        far.close()

    @property
    def connection(self) -> Connection:
        connection: Connection = self.pipe
        return connection

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.join()

    def close(self, timeout_s: float = 60.0) -> None:
        """Let it end by itself, or end it."""
        self.process.join(timeout=timeout_s)
        if self.process.is_alive():
            self.kill()
        self.pipe.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(timeout_s=60.0 if kind is None else 0.0)
