"""Where the state machine has its warehouse: in a folder, or in schemas of its own in PostgreSQL.

In: settings; for PostgreSQL the server of the run.
Out: the warehouse of each life, with a folder of its own, so that an engine that was left behind writes nowhere else.
Promise: nothing is left when the place is closed.
"""

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import righttime as rt
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_schemas, named


class Place:
    """Folders of Delta tables, one per life."""

    in_files = True

    def __init__(self) -> None:
        base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
        self._root = Path(tempfile.mkdtemp(prefix="righttime-machine-", dir=base))
        self._lives = [0]

    @property
    def folder(self) -> Path:
        return self._root / f"life-{self._lives[-1]}"

    def open(self, **options: Any) -> rt.Warehouse:
        """Open the warehouse of this life."""
        return rt.open(self.folder, **options)

    def next_life(self) -> Path:
        """Begin another life and return its folder, which is still to be made."""
        self._lives.append(max(self._lives) + 1)
        return self.folder

    def same_life(self) -> None:
        """Go back to the life before: nobody died."""
        self._lives.append(self._lives[-2])

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


class PostgresPlace(Place):
    """Two schemas of a database for all lives, and a local folder for each. Connections have a name of their own, by which they can be ended."""

    in_files = False

    def __init__(self, server: TempPostgres) -> None:
        super().__init__()
        self._ending = ExitStack()
        self._ending.callback(super().close)
        self._schemas = self._ending.enter_context(fresh_schemas(server))
        self.table_schema = self._schemas["table_schema"]
        self._url = named(server, self.table_schema)

    def open(self, **options: Any) -> rt.Warehouse:
        return rt.open(self._url, state_dir=self.folder, **self._schemas, **options)

    def close(self) -> None:
        self._ending.close()
