"""A proxy that treats connections badly: it cuts, truncates, delays and swallows, as its seed says.

In: the port of a real service; a seed, which failing tests print.
Out: a port of its own to connect to.
Promise: what it does forward it forwards unchanged; every thread and socket of it ends with it.
"""

import random
import socket
import threading
from types import TracebackType

_CHUNK = 4096


class Proxy:
    """Forwards to `port`. Each connection dies after a number of bytes from `bytes_range`, in the middle of a chunk; None never."""

    def __init__(self, port: int, *, seed: int = 0, bytes_range: tuple[int, int] | None = None, delay_s: float = 0.0, grace_bytes: int = 0) -> None:
        self._target = port
        self.seed = seed
        self._dice = random.Random(seed)
        self._bytes_range = bytes_range
        self._delay_s = delay_s
        self._grace_bytes = grace_bytes
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._ended = threading.Event()
        self._refusing = False
        self._keeps_answers = False
        self.connections = 0
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"righttime://127.0.0.1:{self.port}"

    def cut(self, *, refuse: bool = False) -> None:
        """Break every connection now; with `refuse`, and every new one until `heal`."""
        self._refusing = refuse
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._break(*pair)

    def swallow(self) -> None:
        """Forward nothing from now on, without a word to either side."""
        self._flowing.clear()

    def swallow_answers(self) -> None:
        """Forward what clients send, and keep what the service answers."""
        self._keeps_answers = True

    def heal(self) -> None:
        """Forward again, and let new connections in; those that were swallowed are dead."""
        self._refusing = False
        if self._keeps_answers or not self._flowing.is_set():
            self.cut()
            self._keeps_answers = False
            self._flowing.set()

    def misbehave(self, bytes_range: tuple[int, int]) -> None:
        """Break every connection now, and each new one after a number of bytes from a range."""
        self._bytes_range = bytes_range
        self.cut()

    def behave(self) -> None:
        """Cut nothing by itself any more."""
        self._bytes_range = None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs.append((client, server))
                self.connections += 1
                budget = [self._grace_bytes + self._dice.randint(*self._bytes_range) if self._bytes_range else None]
            self._start(self._pump, client, server, budget, False)
            self._start(self._pump, server, client, budget, True)

    def _pump(self, source: socket.socket, sink: socket.socket, budget: list[int | None], answers: bool) -> None:
        try:
            while chunk := source.recv(_CHUNK):
                if answers and self._keeps_answers:
                    continue
                while not self._flowing.wait(timeout=0.5):
                    if self._ended.is_set():
                        return
                if self._delay_s:
                    self._ended.wait(timeout=self._delay_s)
                with self._lock:
                    left = budget[0]
                    if left is not None and self._bytes_range is not None:
                        budget[0] = left - len(chunk)
                if left is not None and self._bytes_range is not None and len(chunk) >= left:
                    sink.sendall(chunk[:left])
                    self.cuts += 1
                    break
                sink.sendall(chunk)
        except OSError:
            pass
        self._break(source, sink)

    def _break(self, *ends: socket.socket) -> None:
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End everything."""
        self._ended.set()
        self._flowing.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(timeout=5)

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
