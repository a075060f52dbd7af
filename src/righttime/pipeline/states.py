"""What the operators of a flow remember: Parquet files by step and part, and one manifest for each drain.

In: rows that a drain appends to state parts.
Out: relations over all rows up to a job.
Promise: a drain's rows are there when `append` returns, whatever happens then, and not at all if it fails; a file that a plan may read stays until the next
drain is appended.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from righttime.errors.flows import FlowChanged, StatesAhead
from righttime.pipeline.compaction import files_to_sum, read, summed
from righttime.pipeline.filed import FiledRows, Held, gathered
from righttime.pipeline.manifests import Manifest, Manifests, PartName, StateFile
from righttime.pipeline.nullable import with_nulls
from righttime.pipeline.operators.signed import JOB, WEIGHT
from righttime.pipeline.sought import Sought
from righttime.pipeline.spans import Spans, can_meet, spans_of
from righttime.pipeline.spark import scan_files
from righttime.telemetry import get_log
from righttime.warehouse.durable import coded_errors, remove_quietly, replace, sync_files, sync_folder

log = get_log("states")

_DECLARATION, _STAGING, _ROWS = "flow.json", "_staging", "rows"
_WORD_MAX = 60  # of a file's name, so much of a step's and of a part's, for people who look
_FEW_ROWS = 10_000
_FILE_ROWS = 1_000_000  # of rows that come in pieces
_FEW: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "write_statistics": False}  # a third of the time; soon summed up anyway
_MANY: dict[str, Any] = {"compression": "zstd"}


Files = tuple[tuple[str, tuple[str, ...]], ...]
"""Parts, and the files of each."""


class StateStore:
    """The state of one flow; safe to call from any thread."""

    def __init__(self, folder: Path, fingerprint: str, *, flow: str = "", anew: bool = False, sought: Sought | None = None) -> None:
        """Open the folder, or make it; remove what a crash left over. Raises `FlowChanged` if another declaration made it, unless `anew` clears it.

        It notes where the values of each file lie, in the columns by which they are `sought`, or in all.
        """
        self._folder, self._flow, self._sought = folder, flow, sought
        self._lock, self._compacting = threading.RLock(), threading.Lock()
        self._retired: set[str] = set()
        self.version = 0  # another one whenever files come or go
        self._scans: dict[PartName, tuple[SparkSession, tuple[str, ...], DataFrame]] = {}
        if anew and folder.exists():
            shutil.rmtree(folder)
        self._check_declaration(fingerprint)
        self._rows = folder / _ROWS
        if not self._rows.exists():
            self._rows.mkdir()
            sync_folder(folder)
        self._manifests = Manifests(folder)
        self._drains = self._manifests.read()
        self._remove_orphans()

    @property
    def last_job(self) -> int | None:
        """The last job of the last drain, None without any."""
        with self._lock:
            return self._drains[-1].last_job if self._drains else None

    def frame(self, child: SparkSession, node: str, part: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> DataFrame | None:
        """Return the rows of one part, of jobs up to this one; None if there are none. Has `_job`. Raises `StatesAhead` as `forget_after` does.

        Files that cannot have any rows with the wanted values are left out.
        """
        with self._lock:
            drains = self._up_to(up_to_job)
            files = self._files(drains, (node, part), wanted)
            if not files:
                return None
            frame = self._scan(child, (node, part), files)
        return frame.where(f"{JOB} <= {up_to_job}") if up_to_job is not None and drains[-1].last_job > up_to_job else frame

    def files(self, node: str, part: str | None, *, wanted: Spans | None = None) -> Files:
        """Return which files `frame` would read, or `frames` without a part: the parts, and the files of each."""
        with self._lock:
            parts = self._parts(node) if part is None else [part]
            found = ((name, self._files(self._drains, (node, name), wanted)) for name in parts)
            return tuple((name, files) for name, files in found if files)

    def rows_in(self, files: Collection[str]) -> int | None:
        """Return how many rows there are in some files; None if one of them is not state any more."""
        if not files:
            return 0
        with self._lock:
            found = {str(self._folder / file.name): file.rows for drain in self._drains for some in drain.parts.values() for file in some}
        return sum(found[file] for file in files) if found.keys() >= set(files) else None

    def _files(self, drains: Sequence[Manifest], name: PartName, wanted: Spans | None) -> tuple[str, ...]:
        every = [file for drain in drains for file in drain.parts.get(name, ())]
        return tuple(str(self._folder / file.name) for file in every if wanted is None or can_meet(file.spans, wanted))

    def _parts(self, node: str) -> list[str]:
        return sorted({part for drain in self._drains for step, part in drain.parts if step == node})

    def _scan(self, child: SparkSession, name: PartName, files: tuple[str, ...]) -> DataFrame:
        """Return a relation over these files; they never change, so the last one of a part serves again as long as they are the same."""
        known = self._scans.get(name)
        if known is None or known[0] is not child or known[1] != files:
            known = self._scans[name] = (child, files, scan_files(child, pq.read_schema(files[0]), files))
        return known[2]

    def frames(self, child: SparkSession, node: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> dict[str, DataFrame]:
        """Return all parts of a step that have rows, as the operators take them."""
        with self._lock:
            parts = self._parts(node)
            found = {part: self.frame(child, node, part, up_to_job=up_to_job, wanted=wanted) for part in parts}
        return {part: frame for part, frame in found.items() if frame is not None}

    def is_net(self, node: str, part: str) -> bool:
        """Return whether no row of a part was ever taken back, so that its lines are its rows."""
        with self._lock:
            return not any(file.takes_back for drain in self._drains for file in drain.parts.get((node, part), ()))

    def table(self, node: str, part: str, *, up_to_job: int | None = None) -> pa.Table | None:
        """Return the rows of one part as an Arrow table, without Spark; as `frame` otherwise."""
        with self._lock:
            files = [self._folder / file.name for drain in self._up_to(up_to_job) for file in drain.parts.get((node, part), ())]
            return read(files, where=None if up_to_job is None else pc.field(JOB) <= up_to_job) if files else None

    def staging(self) -> Path:
        """Return a new folder, on the same disk, into which executors may write files for `append`."""
        folder = self._folder / _STAGING / secrets.token_hex(8)
        folder.mkdir(parents=True)
        return folder

    def append(self, first_job: int, last_job: int, parts: Mapping[PartName, Held | Sequence[Path]]) -> None:
        """Keep what a drain of these jobs adds: tables, rows in files of others, which are copied piece by piece, or Parquet files below `staging()`, which are
        moved. Synced; call before the jobs are published."""
        with self._lock, coded_errors(self._folder, step="writing state", batch_id=f"flow.{self._flow}"):
            assert first_job <= last_job and (self.last_job is None or self.last_job < first_job), "drains are appended in order, each once"
            written = {name: self._write(name, last_job, content) for name, content in parts.items()}
            self._sync(written)
            manifest = Manifest(first_job, last_job, {name: files for name, files in written.items() if files})
            self._manifests.add(manifest)
            self._drains.append(manifest)
            self.version += 1
            # Whoever read these had built his plan before the drain that is appended now.
            gone, self._retired = self._retired, set()
            self._remove_files(gone)

    def forget_after(self, job: int) -> None:
        """Drop what jobs after this one added: they were not published. Raises `StatesAhead` if that cannot be told apart any more."""
        with self._lock:
            self._up_to(job)
            later = [drain for drain in self._drains if drain.first_job > job]
            self._manifests.drop(reversed(later))
            self.version += 1
            self._drains = [drain for drain in self._drains if drain.first_job <= job]
            if self._drains and self._drains[-1].last_job > job:
                later.append(self._drains[-1])
                self._drains[-1] = self._cut(self._drains[-1], job)
            kept = {name for drain in self._drains for name in drain.files()}
            self._remove_files(name for drain in later for name in drain.files() - kept)
            if later:
                log.info("states.forgotten", flow=self._flow, after_job=job, drains=len(later))

    def compact(self, up_to_job: int, *, files_max: int = 16, rows_max: int = 10_000_000) -> int:
        """Sum up the parts that have more files than this, over drains up to the job, which must be published for good; returns how many parts it was.

        Small files are put together and the large ones left, unless the small ones have become many; at most `rows_max` rows are read at once.
        Others may read and append meanwhile.
        """
        with self._compacting:
            with self._lock:
                old = [drain for drain in self._drains if drain.last_job <= up_to_job]
            files: dict[PartName, tuple[StateFile, ...]] = {}
            for drain in old:
                for name, some in drain.parts.items():
                    files[name] = files.get(name, ()) + some
            crowded = {name: few for name, some in files.items() if len(some) > files_max and (few := files_to_sum(some, rows_max=rows_max))}
            if len(old) <= files_max and not crowded:
                return 0
            last_job = old[-1].last_job
            written = {}
            for name, few in crowded.items():
                written[name] = self._write(name, last_job, summed([self._folder / file.name for file in few], job=last_job))
                files[name] = tuple(file for file in files[name] if file not in few) + written[name]
            self._sync(written)
            self._replace(old, Manifest(old[0].first_job, last_job, {name: some for name, some in files.items() if some}, summed=True))
            return len(crowded)

    def clear(self) -> None:
        """Forget everything: the next drain starts from nothing."""
        with self._lock:
            drains, self._drains = self._drains, []
            self.version += 1
            self._manifests.drop(reversed(drains))
            self._remove_files(name for drain in drains for name in drain.files())

    def _check_declaration(self, fingerprint: str) -> None:
        path = self._folder / _DECLARATION
        if path.exists():
            if json.loads(path.read_bytes()).get("fingerprint") != fingerprint:
                raise FlowChanged(flow=self._flow)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self._folder.parent)
        replace(path, json.dumps({"fingerprint": fingerprint}).encode())

    def _up_to(self, job: int | None) -> list[Manifest]:
        for drain in self._drains:
            if drain.summed and job is not None and drain.last_job > job:
                raise StatesAhead(flow=self._flow, known=drain.last_job, job=job)
        return [drain for drain in self._drains if job is None or drain.first_job <= job]

    def _write(self, name: PartName, last_job: int, content: Held | Sequence[Path]) -> tuple[StateFile, ...]:
        """Write or move rows into files of the part, which `_sync` makes last; a part without rows has no file."""
        made = []
        if isinstance(content, pa.Table):
            content = [content]
        for some in gathered(content.pieces(), rows_min=_FILE_ROWS) if isinstance(content, FiledRows) else content:
            path = self._rows / f"{last_job:012d}-{secrets.token_hex(6)}-{'-'.join(quote(word, safe=' ')[:_WORD_MAX] for word in name)}.parquet"
            rows = some.num_rows if isinstance(some, pa.Table) else pq.read_metadata(some).num_rows
            if not rows:
                continue
            takes_back = not isinstance(some, pa.Table) or WEIGHT not in some.column_names or pc.min(some[WEIGHT]).as_py() <= 0
            if isinstance(some, pa.Table):
                pq.write_table(with_nulls(some), path, write_page_checksum=True, **(_FEW if rows <= _FEW_ROWS else _MANY))
            else:
                some.rename(path)
            spans = spans_of(some, self._sought_in(name[0])) if isinstance(some, pa.Table) else {}
            made.append(StateFile(str(path.relative_to(self._folder)), rows, takes_back, spans))
        return tuple(made)

    def _sought_in(self, step: str) -> Iterable[str] | None:
        return None if self._sought is None else self._sought.get(step, ())

    def _sync(self, written: Mapping[PartName, Sequence[StateFile]]) -> None:
        sync_files([self._folder / file.name for files in written.values() for file in files])
        sync_folder(self._rows)

    def _cut(self, drain: Manifest, job: int) -> Manifest:
        """Return the drain without its jobs after this one, and put it in the place of the whole."""
        parts = {}
        for name, files in drain.parts.items():
            tables = (pq.read_table(self._folder / file.name, filters=pc.field(JOB) <= job) for file in files)
            parts[name] = tuple(made for table in tables for made in self._write(name, job, table))
        self._sync(parts)
        shorter = replaced(drain, last_job=job, parts={name: files for name, files in parts.items() if files})
        self._manifests.put(shorter)
        return shorter

    def _replace(self, old: Sequence[Manifest], base: Manifest) -> None:
        with self._lock:
            self._manifests.put(base)
            self.version += 1
            self._drains = [base, *(drain for drain in self._drains if drain not in old)]
            self._manifests.drop_summed(one for one in old if one.name != base.name)
            self._retired |= {name for drain in old for name in drain.files()} - base.files()

    def _remove_orphans(self) -> None:
        known = {name for drain in self._drains for name in drain.files()}
        shutil.rmtree(self._folder / _STAGING, ignore_errors=True)
        for path in self._folder.rglob("*"):
            name = str(path.relative_to(self._folder))
            if path.is_file() and name not in known and path.suffix != ".json":
                remove_quietly(path)

    def _remove_files(self, names: Iterable[str]) -> None:
        for name in names:
            remove_quietly(self._folder / name)
