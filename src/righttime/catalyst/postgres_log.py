"""The write-ahead log of a warehouse in PostgreSQL: records as rows, written in the writer's transaction.

In: entries (rows of a lane with their ids and commit times).
Out: positions for the ledger; on open, the entries between two positions.
Promise: a record is durable with the state that names it, in the same commit; what lies behind the ledger's position does not exist and is
removed by the next append. The interface is that of `log.WriteAheadLog`; the offset of a position is the number of a record.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from righttime.catalyst.log import LogEntry, Record, decode, encode
from righttime.changes.faults import CrashPoint, reach
from righttime.errors import LogFull, RightTimeError, WarehouseDamaged, WarehouseReadOnly
from righttime.ledger.postgres_connect import Pool, coded_errors, run
from righttime.ledger.postgres_writer import PostgresWriter
from righttime.ledger.state import LogPosition
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("log")

PART_BYTES = 1 << 26  # a value in PostgreSQL is shorter than 1 GiB


class PostgresLog:
    """The log's table; the mover's lock guards it. Without a writer it only reads."""

    def __init__(self, pool: Pool, writer: PostgresWriter | None, *, settings: Settings) -> None:
        self._pool = pool
        self._address = pool.address
        self._writer = writer
        self._settings = settings
        self._kept: list[Record] = []
        with coded_errors(self._address, step="read"), pool.connection() as connection:
            self._sizes: dict[int, int] = {n: int(size) for n, size in run(connection, self._address.ours("SELECT number, sum(bytes) FROM {0}.log GROUP BY 1"))}

    def append(self, entries: Sequence[LogEntry], *, at: LogPosition, bounded: bool = True) -> Record:
        """Write one record at the ledger's position `at`; the caller hands it to `keep` once the ledger has it."""
        record = encode(entries)
        held = sum(size for number, size in self._sizes.items() if number < at.offset)
        if bounded and held + len(record) > self._settings.log_bytes_max:
            raise LogFull(used=held + len(record), bound=self._settings.log_bytes_max)
        writer = self._for_writing("write the log")
        writer.execute(self._address.ours("DELETE FROM {0}.log WHERE number >= %s"), (at.offset,), step="write log")
        parts = [record[start : start + PART_BYTES] for start in range(0, len(record), PART_BYTES)]
        for part, content in enumerate(parts):
            row = (at.offset, part, len(content), content)
            writer.execute(self._address.ours("INSERT INTO {0}.log VALUES (%s, %s, %s, %b)"), row, step="write log")
        reach(CrashPoint.LOG_WRITTEN)
        reach(CrashPoint.LOG_SYNCED)
        self._sizes = {number: size for number, size in self._sizes.items() if number < at.offset} | {at.offset: len(record)}
        return Record.of(at, LogPosition(at.file, at.offset + 1), entries)

    def keep(self, record: Record) -> None:
        """Remember a record that the ledger has accepted."""
        self._kept.append(record)

    def begin(self, stored: Mapping[tuple[str, str], int], *, appended: Record | None, end: LogPosition) -> LogPosition:
        """Return where the log has to begin once rows up to `stored` are in the warehouse."""
        records = self._kept if appended is None else [*self._kept, appended]
        return next((record.start for record in records if record.needed(stored)), end)

    def release(self, begin: LogPosition, *, end: LogPosition) -> None:
        """Remove records before `begin`; the ledger has it already."""
        self._kept = [record for record in self._kept if record.end.offset > begin.offset]
        if not any(number < begin.offset for number in self._sizes):
            return
        try:
            self._for_writing("shorten the log").alone(self._address.ours("DELETE FROM {0}.log WHERE number < %s"), (begin.offset,), step="shorten log")
        except RightTimeError as error:
            # The state is durable, so this is no failure of the step; the next release tries again.
            log.warning("log.not_shortened", error=str(error))
            return
        self._sizes = {number: size for number, size in self._sizes.items() if number >= begin.offset}
        reach(CrashPoint.LOG_REMOVED)

    def read(self, begin: LogPosition, end: LogPosition) -> Iterator[LogEntry]:
        """Yield the entries between two positions of the ledger, remembering the records."""
        for number in range(begin.offset, end.offset):
            entries, _ = decode(self._record(number), 0, Path(f"{self._address.ledger}.log record {number}"))
            self.keep(Record.of(LogPosition(begin.file, number), LogPosition(begin.file, number + 1), entries))
            yield from entries

    def bytes_held(self) -> int:
        """Return the size of all records."""
        return sum(self._sizes.values())

    def _record(self, number: int) -> bytes:
        query = self._address.ours("SELECT record FROM {0}.log WHERE number = %s ORDER BY part")
        with coded_errors(self._address, step="read"), self._pool.connection() as connection, connection.cursor(binary=True) as cursor:
            parts = [bytes(part) for (part,) in cursor.execute(query, (number,)).fetchall()]
        if not parts:
            raise WarehouseDamaged(path=self._address.name, reason=f"log record {number}, which the ledger names, is missing")
        return b"".join(parts)

    def _for_writing(self, action: str) -> PostgresWriter:
        if self._writer is None:
            raise WarehouseReadOnly(path=self._address.name, action=action)
        return self._writer
