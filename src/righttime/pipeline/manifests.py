"""Manifests of a flow's state: which files belong to it, one for each drain and one for everything that was summed up.

In: a folder with manifests, whole or torn.
Out: the drains in order; new manifests, synced.
Promise: a manifest is there whole or not at all; a torn one is ignored if nothing came after it, and damage otherwise.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from righttime.errors import WarehouseDamaged, WarehouseNewer
from righttime.pipeline.spans import Span, Spans
from righttime.warehouse.durable import put_if_absent, remove_quietly, replace, sync_folder

PartName = tuple[str, str]  # step, part
FORMAT = 3  # 1 had no spans, 2 only their ends


@dataclass(frozen=True)
class StateFile:
    """One Parquet file of a part: its name below the folder of the state, its rows, whether some take back others, and what is known of their values."""

    name: str
    rows: int
    takes_back: bool = True
    spans: Spans = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The files that the jobs `first_job` to `last_job` added. `summed`: jobs cannot be told apart in them any more."""

    first_job: int
    last_job: int
    parts: Mapping[PartName, tuple[StateFile, ...]]
    summed: bool = False

    @property
    def name(self) -> str:
        """The manifest's own file: a drain is known by its first job, so that it can be cut shorter in place."""
        return f"base-{self.last_job:012d}.json" if self.summed else f"drain-{self.first_job:012d}.json"

    def files(self) -> set[str]:
        """Return the names of all its files."""
        return {file.name for files in self.parts.values() for file in files}


class Manifests:
    """The manifests in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[Manifest]:
        """Return what holds, oldest first, and remove the manifests that do not: torn at the end, or summed up by a later one."""
        paths = sorted(self._folder.glob("*-*.json"))
        found = {path: _decode(path) for path in paths}
        bases = [manifest for manifest in found.values() if manifest is not None and manifest.summed]
        base = max(bases, key=lambda one: one.last_job, default=None)
        drains = [one for one in found.values() if one is not None and not one.summed and (base is None or one.first_job > base.last_job)]
        holds = ([base] if base is not None else []) + sorted(drains, key=lambda one: one.first_job)
        self._check_torn([path for path, manifest in found.items() if manifest is None], holds)
        self._remove(path for path, manifest in found.items() if manifest not in holds)
        return holds

    def _check_torn(self, torn: list[Path], holds: list[Manifest]) -> None:
        for path in torn:
            kind, _, number = path.stem.partition("-")
            # A name is bound to whole and synced content only, so nothing acknowledged is torn: it is a drain that nobody was told of, or damage.
            if kind != "drain" or any(one.last_job >= int(number) for one in holds):
                raise WarehouseDamaged(path=str(path), reason="the manifest of a flow's state cannot be read")

    def add(self, manifest: Manifest) -> None:
        """Write a new manifest; it holds from here on."""
        put_if_absent(self._folder / manifest.name, _encode(manifest))

    def put(self, manifest: Manifest) -> None:
        """Put a manifest in the place of the one with the same name, if there is one."""
        replace(self._folder / manifest.name, _encode(manifest))

    def drop(self, manifests: Iterable[Manifest]) -> None:
        """Remove manifests, in the given order: a crash in between leaves the rest."""
        self._remove(self._folder / manifest.name for manifest in manifests)

    def drop_summed(self, manifests: Iterable[Manifest]) -> None:
        """Remove manifests that a base covers, in any order: what a crash leaves of them is recognised."""
        for manifest in manifests:
            remove_quietly(self._folder / manifest.name)
        sync_folder(self._folder)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            remove_quietly(path)
            sync_folder(self._folder)


def _encode(manifest: Manifest) -> bytes:
    parts = [[step, part, [_encode_file(file) for file in files]] for (step, part), files in manifest.parts.items()]
    content = {"format": FORMAT, "first_job": manifest.first_job, "last_job": manifest.last_job, "summed": manifest.summed, "parts": parts}
    text = json.dumps(content, sort_keys=True)
    return json.dumps({"crc": zlib.crc32(text.encode()), "manifest": content}, sort_keys=True).encode()


def _encode_file(file: StateFile) -> list[Any]:
    return [
        file.name,
        file.rows,
        file.takes_back,
        {name: [span.nulls, *(end for stretch in span.stretches for end in stretch)] for name, span in file.spans.items()},
    ]


def _decode_file(name: str, rows: int, takes_back: bool = True, spans: Mapping[str, Any] | None = None) -> StateFile:
    return StateFile(name, rows, takes_back, {column: _decode_span(span) for column, span in (spans or {}).items()})


def _decode_span(span: list[Any] | dict[str, Any]) -> Span:
    if isinstance(span, dict):  # of format 2
        return Span(((span["least"], span["greatest"]),) if span["least"] is not None else (), span["nulls"])
    nulls, *ends = span
    return Span(tuple(zip(ends[::2], ends[1::2], strict=True)), nulls)


def _decode(path: Path) -> Manifest | None:
    try:
        whole = json.loads(path.read_bytes())
        content = whole["manifest"]
        if whole["crc"] != zlib.crc32(json.dumps(content, sort_keys=True).encode()):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    if content["format"] > FORMAT:
        raise WarehouseNewer(path=path, found=content["format"], known=FORMAT)
    parts = {(step, part): tuple(_decode_file(*file) for file in files) for step, part, files in content["parts"]}
    return Manifest(content["first_job"], content["last_job"], parts, content["summed"])
