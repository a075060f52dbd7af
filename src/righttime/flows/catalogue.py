"""The catalogue of flows: which flow maintains which tables, from which streams, and where its state is.

In: flows as they are first run, changed or refreshed.
Out: the same when the warehouse is opened again, before any flow runs.
Promise: an entry is written whole or not at all; which generation of state counts depends only on the last durable job.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from righttime.errors import WarehouseDamaged
from righttime.warehouse.durable import replace

_ENTRY = "flow.json"


@dataclass(frozen=True, slots=True)
class Generation:
    """State that was built anew, in use from a job on; what it is made of, and what is made of it."""

    number: int
    first_job: int
    fingerprint: str
    streams: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlowEntry:
    """What is known of a flow that does not run."""

    name: str
    generations: tuple[Generation, ...]

    @property
    def source(self) -> str:
        return source_of(self.name)

    def generation(self, job: int) -> Generation:
        """Return the state that is right after the published job `job`; a later generation counts from its first job on.

        Before any first job that is the oldest, as it was declared: nothing in its folder counts yet.
        """
        return next((each for each in reversed(self.generations) if each.first_job <= job), self.generations[0])


def source_of(flow: str) -> str:
    """Return the name under which a flow commits."""
    return f"flow.{flow}"


class Catalogue:
    """Entries of all flows of one warehouse, one small file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, flow: str) -> Path:
        return self._folder / flow

    def states(self, flow: str, generation: Generation) -> Path:
        """Return where the state of a generation is."""
        return self._folder / flow / f"state-{generation.number}"

    def entries(self) -> Iterator[FlowEntry]:
        for path in sorted(self._folder.glob(f"*/{_ENTRY}")):
            yield _read(path)

    def entry(self, flow: str) -> FlowEntry | None:
        path = self._folder / flow / _ENTRY
        return _read(path) if path.exists() else None

    def write(self, entry: FlowEntry) -> None:
        folder = self._folder / entry.name
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / _ENTRY, json.dumps(asdict(entry), indent=1).encode())

    def begin(self, flow: str, streams: Sequence[str], targets: Sequence[str], fingerprint: str, *, next_job: int) -> FlowEntry:
        """Return the entry of a flow, making one if it is new."""
        known = self.entry(flow)
        if known is None:
            known = FlowEntry(flow, (Generation(1, next_job, fingerprint, tuple(streams), tuple(targets)),))
            self.write(known)
        return known

    def renew(self, entry: FlowEntry, streams: Sequence[str], targets: Sequence[str], fingerprint: str, *, durable_job: int, next_job: int) -> Generation:
        """Begin a further generation of a flow's state, in use once its first job is durable; what nobody can go back to is removed.

        A crash may take back every job that is not durable, so all generations from that of the last durable one on stay.
        """
        kept = [each for each in _from(entry, durable_job) if each.first_job < next_job]
        generation = Generation(max(each.number for each in entry.generations) + 1, next_job, fingerprint, tuple(streams), tuple(targets))
        self._replace(entry, FlowEntry(entry.name, (*kept, generation)))
        return generation

    def go_on(self, entry: FlowEntry, generation: Generation, *, durable_job: int) -> None:
        """Forget generations that were begun and not used: a job that this one publishes must not be taken for theirs."""
        kept = tuple(each for each in _from(entry, durable_job) if each.number <= generation.number)
        if entry.generations != kept:
            self._replace(entry, FlowEntry(entry.name, kept))

    def _replace(self, old: FlowEntry, new: FlowEntry) -> None:
        self.write(new)
        for generation in old.generations:
            if generation not in new.generations:
                shutil.rmtree(self.states(old.name, generation), ignore_errors=True)


def _from(entry: FlowEntry, job: int) -> list[Generation]:
    """Return the generation that is right after a job, and all later ones."""
    return list(entry.generations[entry.generations.index(entry.generation(job)) :])


def _read(path: Path) -> FlowEntry:
    try:
        about = json.loads(path.read_bytes())
        return FlowEntry(about["name"], tuple(_generation(about | each) for each in about["generations"]))
    except (ValueError, KeyError, TypeError) as error:
        raise WarehouseDamaged(path=str(path), reason=f"the entry of a flow cannot be read: {error}") from error


def _generation(about: dict[str, Any]) -> Generation:
    """Read a generation; those of the first version had the streams and targets of their flow."""
    return Generation(about["number"], about["first_job"], about["fingerprint"], tuple(about["streams"]), tuple(about["targets"]))
