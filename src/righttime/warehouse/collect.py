"""Collection: files that no kept version needs leave the disk.

In: the files that kept versions reference, the names that are still being committed, the time.
Out: what was removed.
Promise: a file of a kept version, of a commit in progress, or young and of an unknown writer stays; a crash half-way leaves only work for the next time.
"""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from righttime.changes.faults import CrashPoint, reach
from righttime.warehouse.delta_log import Action, DeltaLog, local_path
from righttime.warehouse.durable import TEMPORARY_PREFIX
from righttime.warehouse.files import OWN_PREFIX
from righttime.warehouse.store import Collected

STAGING_FOLDER = "_staging"


@dataclass(frozen=True, slots=True)
class Needed:
    """What must stay: absolute paths of data files and staging folders, and the oldest version somebody may open."""

    paths: Collection[str]
    version_min: int


def files_of_versions(log: DeltaLog, base: Collection[str], *, versions: Collection[int], newest: int) -> set[str]:
    """Return every file that one of `versions` or the newest has; `base` are the files of the oldest of them.

    One pass over the entries in between, however many versions are kept.
    """
    kept = sorted({*versions, newest})
    alive = dict.fromkeys(base, kept[0])
    needed: set[str] = set()
    for number, actions in log.applied(kept[0], newest):
        # Removes first: a writer that marks rows of a file as deleted adds and removes the same path in one entry, in any order.
        for path in _paths(log, actions, "remove"):
            since = alive.pop(path, None)
            if since is not None and kept[bisect_left(kept, since)] < number:
                needed.add(path)
        alive.update(dict.fromkeys(_paths(log, actions, "add"), number))
    return needed.union(alive)


def _paths(log: DeltaLog, actions: Iterable[Action], kind: str) -> list[str]:
    return [local_path(log.table_folder, action[kind]["path"]) for action in actions if kind in action]


def collect(log: DeltaLog, *, needed: Callable[[], Needed], writing: AbstractContextManager[object], grace_s: float, now_s: float) -> Collected:
    """Remove what is not needed; `needed` is asked after the disk was listed, so that no later file can be missed by it.

    Whoever holds the lock `writing` may have a temporary log entry.
    """
    folder = log.table_folder
    found = [path for path in _data_files(folder) if path.name.startswith(OWN_PREFIX) or _age_s(path, now_s) > grace_s]
    staged = list((folder / STAGING_FOLDER).iterdir()) if (folder / STAGING_FOLDER).is_dir() else []
    keep = needed()
    victims = [path for path in found if str(path) not in keep.paths]
    folders = [path for path in staged if str(path) not in keep.paths]
    reach(CrashPoint.GC_PLANNED)
    sizes = [_remove(path) for path in victims]
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
        reach(CrashPoint.GC_REMOVED_ONE)
    with writing:
        entries = [_remove(path) for path in log.folder.glob(f"{TEMPORARY_PREFIX}*.tmp")]
    entries += [_remove(path) for path in _old_entries(log, keep.version_min)]
    return Collected(files=len(sizes), bytes=sum(sizes), folders=len(folders), log_entries=len(entries))


def _data_files(folder: Path) -> Iterator[Path]:
    """Yield the Parquet files of a table; another writer may have put some into partition folders."""
    for path in folder.iterdir():
        if path.name.startswith(("_", ".")):
            continue
        if path.is_dir():
            yield from _data_files(path)
        elif path.suffix == ".parquet":
            yield path


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.stat().st_mtime
    except FileNotFoundError:  # its owner removed it just now
        return 0.0


def _remove(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    reach(CrashPoint.GC_REMOVED_ONE)
    return size


def _old_entries(log: DeltaLog, version_min: int) -> list[Path]:
    """Return the files of the log below the newest checkpoint that the oldest needed version can start from, oldest first."""
    names = sorted(log.names())
    # A checkpoint in several parts may be incomplete; only a single file is trusted as a new beginning.
    checkpoints = [version for version, name in names if name.endswith(".checkpoint.parquet") and version <= version_min]
    if not checkpoints:
        return []
    return [log.folder / name for version, name in names if version < max(checkpoints)]
