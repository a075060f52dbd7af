"""The roster: which producers a writing process has open, for those who look from outside.

In: the links of a catalyst, whenever a producer opens or closes.
Out: one small file beside the ledger, and what it says.
Promise: never needed for anything but a status; a roster that cannot be written or read costs nobody a commit or an answer.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from righttime.telemetry import get_log

ROSTER_FILE = "producers.json"

log = get_log("roster")


def write_roster(folder: Path, policies: Mapping[str, str]) -> None:
    """Write down the open sources and their policies; none removes the file."""
    path = folder / ROSTER_FILE
    try:
        if not policies:
            path.unlink(missing_ok=True)
            return
        fresh = path.with_name(f"{ROSTER_FILE}.new")
        fresh.write_text(json.dumps(policies))
        fresh.replace(path)
    except OSError as error:
        log.warning("roster.failed", path=str(path), error=str(error))


def read_roster(folder: Path, *, living: int | None) -> dict[str, str]:
    """Return the open sources of a living writer and their policies; nothing if there is no writer."""
    if living is None:
        return {}
    try:
        found = json.loads((folder / ROSTER_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {str(source): str(policy) for source, policy in found.items()} if isinstance(found, dict) else {}
