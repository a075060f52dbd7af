"""The loading port beside the catalyst: a producer's session in the same process.

In: flushes, commits and rollbacks of one producer.
Out: calls of the catalyst, and of the mover for what has to be durable.
Promise: as `port.Session`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from righttime.catalyst.bonds import connected
from righttime.catalyst.doubt import Doubt
from righttime.catalyst.links import Link
from righttime.catalyst.messages import Bypass, Content, Flush, Made, Published
from righttime.catalyst.mover import Mover
from righttime.catalyst.room import Room
from righttime.catalyst.settler import Settler
from righttime.catalyst.shell import Catalyst
from righttime.changes.interrupts import InterruptedAfterCommit
from righttime.changes.position import Commit
from righttime.changes.schema import TableSchema
from righttime.errors import CommitFailed, CommitUnknown, NotStored, RightTimeError
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("producer")

KnownBatch = Callable[[str, str], Commit | None]
_OPERATIONS_MANY = 128  # as long as these take to be logged, a step of its own takes


class LocalSessions:
    """Opens sessions on one catalyst."""

    def __init__(
        self,
        catalyst: Catalyst,
        settler: Settler,
        mover: Mover,
        room: Room,
        *,
        schemas: Mapping[str, TableSchema],
        settings: Settings,
        known_batch: KnownBatch,
    ) -> None:
        self.catalyst = catalyst
        self.settler = settler
        self.settings = settings
        self.mover = mover
        self.room = room
        self.schemas = schemas
        self.known_batch = known_batch

    def open(self, source: str, *, policy: str) -> "LocalSession":
        """Admit a producer."""
        return LocalSession(self, self.catalyst.open_link(source, policy=policy))


class LocalSession:
    """One producer of this process."""

    def __init__(self, sessions: LocalSessions, link: Link) -> None:
        self.link = link
        self._with = sessions
        self._catalyst = sessions.catalyst
        self._doubt: Doubt | None = None

    @property
    def source(self) -> str:
        return self.link.source

    @property
    def apart(self) -> bool:
        return False

    @property
    def staged(self) -> bool:
        return bool(self.link.staged)

    # -- commits -----------------------------------------------------------------------------------------------------

    def make_room(self, sizes: Mapping[str, int]) -> None:
        for table, nbytes in sizes.items():
            self._with.room.make(self._with.schemas[table], nbytes)

    def commit_lazily(self, rows: Mapping[str, int], *, batch_id: str | None, content: Mapping[str, Sequence[Content]] | None = None) -> Published:
        made = self._made_before(rows)
        if made is not None:
            return replace(made, replayed=True)  # there is nothing to archive
        commit = self._catalyst.commit_lazily(self.link, rows, batch_id=batch_id)
        return Published(commit, self._catalyst.head.number)

    def commit(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]], *, batch_id: str | None) -> Published:
        if self._doubt is not None and (made := self._made_before(_counts(content))) is not None:
            self.flush(flushes)
            return made
        if self._catalyst.halted is not None:
            self._catalyst.refuse_halted()  # before anybody waits for others
        with self._with.settler.checking(self.link, wait_s=self._with.settings.wait_s) as confirm, self._catalyst.lock:
            confirm()
            return self._catalyst.commit(self.link, flushes, content, batch_id=batch_id)

    def stage(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]]) -> None:
        doubt = self._settled()
        if doubt is not None and not any(_counts(content).values()):
            self.flush(flushes)
            return  # the commit that follows finds that it is made
        if doubt is not None:
            raise self._grown(doubt)
        self._catalyst.stage(self.link, flushes, content)

    def commit_durably(self, bypass: Mapping[str, Bypass], *, store: bool, batch_id: str | None) -> Published:
        made = self._made_before({}, bypass)
        if made is not None:
            self._store_rest(made, self._unstored() if store else set())
            return made
        before = self._last_commit()
        try:
            return self._commit_in_order(bypass, store=store, batch_id=batch_id)
        except CommitUnknown:
            self._doubt = self._with.mover.doubts.take(self.source)
            raise
        except KeyboardInterrupt:
            if self._last_commit() == before:
                raise
            raise InterruptedAfterCommit from None

    def _last_commit(self) -> Commit:
        with self._catalyst.lock:
            return self._catalyst.head.source(self.source).last

    def _commit_in_order(self, bypass: Mapping[str, Bypass], *, store: bool, batch_id: str | None) -> Published:
        if not any(extra.adopted is None and self._catalyst.table(table).must_settle(self.source) for table, extra in bypass.items()):
            return self._commit_durably(bypass, store=store, batch_id=batch_id)
        # Rows that go straight into a table come after its operations, and these after what others hold back: nobody begins to hold back meanwhile.
        with self._catalyst.gated(list(self._catalyst.tables)):
            self._ensure_all()
            return self._commit_durably(bypass, store=store, batch_id=batch_id)

    def _commit_durably(self, bypass: Mapping[str, Bypass], *, store: bool, batch_id: str | None) -> Published:
        if store:
            self._store_earlier()
        wanted = self._unstored() if store else self._without_memory()
        tables = self._stored_at_once(wanted, bypass)
        kind = "materialize" if store else "bypass" if bypass else "log"
        with self._with.settler.checking(self.link, wait_s=self._with.settings.wait_s) as confirm:
            try:
                published = self._with.mover.commit(self.link, tables=tables, bypass=bypass, batch_id=batch_id, kind=kind, confirm=confirm)
            except CommitFailed:
                with self._catalyst.lock:
                    confirm()  # a database finds a key taken before we look again; that is told as what it is
                raise
        # What came to the tables meanwhile may have left more of them only logged.
        self._store_rest(published, wanted & self._unstored())
        return published

    def _stored_at_once(self, wanted: set[str], bypass: Mapping[str, Bypass]) -> set[str]:
        """Return the tables that the step of a commit stores itself.

        Those with operations are only logged by it and stored in a second step, whose outcome depends on when this commit was made; so are tapped ones,
        whose streams have to get the rows first. So are tables that foreign keys connect with such a table, or with rows of others that are not stored.
        """
        references = self._with.mover.references() if wanted or bypass else {}
        with self._catalyst.lock:
            tables = self._catalyst.tables
            hot = {name for name in connected({*wanted, *bypass}, references) if any(lane.last_id > lane.stored_id for lane in tables[name].lanes.values())}
            later = {name for name in wanted | hot if tables[name].must_settle(self.source) or name in self._catalyst.tapped}
        # What goes past memory cannot wait, and takes along what it may refer to.
        along = (hot & connected(bypass, references)) - later
        return wanted - connected(later | (hot - wanted - along), references) | along

    def _store_earlier(self) -> None:
        """Store what was committed to tables with operations before: the step of the commit could only log it, every operation, for the next step to store."""
        with self._catalyst.lock:
            earlier = {name for name in self._unstored() if self._catalyst.tables[name].operations_unlogged() > _OPERATIONS_MANY}
        if not earlier:
            return
        try:
            self._with.mover.materialize(earlier)
        except RightTimeError as error:
            log.info("storing.put_off", source=self.source, code=error.code)  # the commit comes first, and then tells what cannot be stored

    def _without_memory(self) -> set[str]:
        """Tables that keep their rows in the warehouse only: what is staged for them is stored whatever the commit asked for."""
        return {table for table in self.link.staged if not self._with.schemas[table].in_memory}

    def _store_rest(self, published: Published, tables: set[str]) -> None:
        """Store what the commit could only log."""
        if not tables:
            return
        try:
            self._ensure_all()
            self._with.mover.materialize(tables)
        except RightTimeError as error:
            raise NotStored(number=published.commit.number, source=self.source, reason=str(error).removesuffix(".")) from error
        if tables & self._unstored():
            raise NotStored(number=published.commit.number, source=self.source, reason="a lazy producer holds earlier commits back")

    def _ensure_all(self) -> None:
        deadline_s = self._catalyst.clock.monotonic_s() + self._with.settings.wait_s
        others = [table for table in self._catalyst.tables if table not in self._catalyst.maintained]  # nobody but their flow writes those
        self._catalyst.ensure_accuracy(self._catalyst.authority.read_us(), others, deadline_s=deadline_s)

    def _unstored(self) -> set[str]:
        with self._catalyst.lock:
            lanes = ((name, table.lanes.get(self.source)) for name, table in self._catalyst.tables.items())
            return {name for name, lane in lanes if lane is not None and lane.last_id > lane.stored_id}

    # -- in doubt ----------------------------------------------------------------------------------------------------

    def _settled(self) -> Doubt | None:
        """Return the last commit of this producer, if it was in doubt and turned out to be made; raise `CommitUnknown` as long as nobody can tell."""
        if self._doubt is None:
            return None
        try:
            self._with.mover.settle()
        except RightTimeError as error:
            raise CommitUnknown(source=self.source, reason=str(error).removesuffix(".")) from error
        if self._doubt.published is None:
            self._doubt = None  # it was not made, and everything is as it was before
        return self._doubt

    def _made_before(self, rows: Mapping[str, int], bypass: Mapping[str, Bypass] | None = None) -> Published | None:
        """Return the commit that was in doubt, if it was made and this one means the same; it stays in doubt where this one has more."""
        doubt = self._settled()
        if doubt is None:
            return None
        before, now = doubt.step.order.bypass, bypass or {}
        if any(rows.values()) or {table: part.rows for table, part in now.items()} != {table: part.rows for table, part in before.items()}:
            raise self._grown(doubt)
        self._doubt = None
        return doubt.published

    def _grown(self, doubt: Doubt) -> CommitUnknown:
        assert doubt.published is not None
        return CommitUnknown(source=self.source, reason=f"commit {doubt.published.commit.number} did happen, and takes no more rows")

    def flush(self, flushes: Sequence[Flush]) -> None:
        self._catalyst.flush(self.link, flushes)

    def roll_back(self) -> Made | None:
        doubt, self._doubt = self._doubt, None
        left = doubt is not None and self._with.mover.doubts.abandon(doubt)
        if self.link.staged and not left:
            self._catalyst.roll_back(self.link)
        return self.made_in_doubt()

    def made_in_doubt(self) -> Made | None:
        return None  # a lazy commit in the same process is always answered

    def known_batch(self, batch_id: str) -> Published | None:
        if self._catalyst.halted is not None:
            self._with.mover.settle()
        if self._doubt is not None and self._doubt.published is not None and self._doubt.step.order.batch_id == batch_id:
            self._doubt = None  # whoever asks is told now
        with self._catalyst.lock:
            found = self._catalyst.head.batches.get((self.source, batch_id))
        commit = found or self._with.known_batch(self.source, batch_id)
        return None if commit is None else Published(commit, self._catalyst.head.number, replayed=True)

    def await_requests(self, timeout_s: float) -> Mapping[str, int] | None:
        return self._catalyst.await_requests(self.link, timeout_s)

    def close(self) -> None:
        self._catalyst.close_link(self.link)


def _counts(content: Mapping[str, Sequence[Content]]) -> dict[str, int]:
    return {table: sum(part.rows for part in parts) for table, parts in content.items()}
