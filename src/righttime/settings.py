"""All settings of one warehouse handle, in one frozen object.

In: keyword arguments, `RIGHTTIME_*` environment variables, `righttime.toml`; the first that names a setting wins.
Out: a `Settings` that every part reads and nobody changes.
Promise: each bound and wait has a default, a unit in its name and a range that is checked here.
"""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError, TomlConfigSettingsSource

from righttime.errors import BadSetting

MIB = 1024 * 1024
SECONDS_MAX = 100 * 365 * 86_400
"""A hundred years, as for durations of queries: every clock, lock and socket can count that far."""
COUNT_MAX = 2**62
_WRONG = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "it must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "it must be a number, and finite"),
    "greater_than": "it must be more than {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "less_than_equal": "it must be at most {le}",
    **dict.fromkeys(("string_type", "path_type"), "it must be a text"),
    "string_too_short": "it must have a character",
    "string_too_long": "it must have at most {max_length} characters",
    "dict_type": "it must be a table of texts",
}
"""What pydantic finds wrong, in words of ours."""
_LOCK_WAIT_S_MAX = 2_147_483  # PostgreSQL counts milliseconds in 32 bits

# For settings whose greatest value is that of their kind: where two are given, pydantic takes the one of the type.
Seconds = Annotated[float, Field(le=SECONDS_MAX, allow_inf_nan=False)]
Count = Annotated[int, Field(le=COUNT_MAX)]


class Settings(BaseSettings):
    """Bounds, waits and places; see docs/reference/settings.md for what each one does."""

    model_config = SettingsConfigDict(env_prefix="RIGHTTIME_", toml_file="righttime.toml", frozen=True, extra="forbid")

    # The catalyst's memory.
    memory_bytes_max: Count = Field(default=256 * MIB, ge=1, description="Hot bytes one table may keep in memory before segments are spilled to files.")
    spill_bytes_max: Count = Field(default=4096 * MIB, ge=0, description="Bytes one table may keep in spill files before commits wait, then fail.")
    operations_bytes_max: Count = Field(default=64 * MIB, ge=1, description="Bytes of updates and deletes one table may hold before commits wait, then fail.")
    full_wait_s: Seconds = Field(default=10.0, ge=0, description="How long a commit waits for space before it fails with catalyst.full.")
    segment_rows: Count = Field(default=131_072, ge=1, description="Rows of a full segment of hot rows; the tail of a table is sealed by quarters of it.")
    image_dir: Path | None = Field(default=None, description="Folder for images of hot segments; default one in /dev/shm, else in the temporary folder.")

    # Producers.
    batch_bytes_max: Count = Field(default=4096 * MIB, ge=1, description="Largest batch one insert call takes.")
    bypass_bytes: Count = Field(default=64 * MIB, ge=1, description="A commit with more bytes than this for one table goes straight to the warehouse.")
    archive_bytes_max: Count = Field(default=128 * MIB, ge=1, description="Lazily committed bytes a producer keeps before it flushes by itself.")
    policy_poll_s: Seconds = Field(default=0.5, gt=0, description="How often a flush policy is asked while committed rows are unflushed.")
    sources_max: int = Field(default=4096, ge=1, le=4096, description="Sources a warehouse knows; name producers so that names come again.")
    producer_lease_s: Seconds = Field(default=5.0, gt=0, description="A producer with unflushed rows that is silent for this long counts as dead.")

    # Materialization without being told.
    materialize_rows: Count = Field(default=0, ge=0, description="Store a table's hot rows in the background once it has this many; 0 = only when told.")
    materialize_every_s: Seconds = Field(default=0.0, ge=0, description="Store all hot rows in the background this often; 0 = only when told.")

    # The write-ahead log.
    log_bytes_max: Count = Field(default=4096 * MIB, ge=1, description="Bytes the write-ahead log may hold before a logged commit fails.")
    log_file_bytes: Count = Field(default=64 * MIB, ge=1, description="Size at which a log file is closed and the next one begun.")

    # Queries.
    wait_s: Seconds = Field(default=30.0, ge=0, description="Default of wait=: how long a query waits for the freshness it asked for.")
    queries_max: Count = Field(default=16, ge=1, description="Queries that run at once; further ones wait their turn.")
    lease_ttl_s: Seconds = Field(default=3600.0, gt=0, description="How long a query may hold the rows and files it reads.")
    retry_ttl_s: Seconds = Field(default=1.0, gt=0, description="How long a materialization waits for a query that was refused once.")
    answer_bytes_max: Count = Field(default=1024 * MIB, ge=1, description="Largest answer that is collected.")
    spark_master: str = Field(default="local[*]", description="Spark master, used when no Spark session is active.")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="Further Spark configuration.")

    # Streams.
    stream_segment_rows: Count = Field(default=131_072, ge=1, description="Rows at which the tail of a stream is sealed into one segment.")
    stream_log_bytes: Count = Field(
        default=64 * MIB, ge=1, description="Size at which the next file of the feed log is begun, and all tails of streams are sealed."
    )
    stream_cache_bytes: Count = Field(default=256 * MIB, ge=0, description="Bytes of segments that all streams together keep in memory.")
    stream_unpacked_bytes: Count = Field(
        default=8192 * MIB, ge=0, description="Bytes on disk in which all streams together keep segments unpacked whose rows are changed or deleted."
    )
    stream_dead_letters_max: Count = Field(default=10_000, ge=0, description="Dead letters that a stream keeps before appends with bad changes are refused.")
    stream_appends_max: Count = Field(default=10_000, ge=1, description="Appends over the network whose outcome is known if they are sent again, newest first.")

    # Flows.
    drain_rows_max: Count = Field(default=100_000, ge=1, description="Changes that one drain takes; more are parted at commits.")
    drain_output_rows_max: Count = Field(
        default=1_000_000, ge=1, description="Rows that a drain brings into memory; more are written to files by Spark and taken from there in pieces."
    )
    drain_jobs_max: Count = Field(default=256, ge=1, description="Jobs that one drain takes.")
    background_rows: Count = Field(default=100_000, ge=1, description="A flow takes changes without being asked once more than so many wait.")
    background_idle_s: Seconds = Field(default=1.0, ge=0, description="A flow takes waiting changes when no query came for this long; 0 = never.")
    dead_letters_max: Count = Field(default=10_000, ge=0, description="Rows that a flow keeps as dead letters, and takes in one drain, before it stops.")
    window_s: Seconds = Field(default=2.0, gt=0, description="How often a flow in near-real-time mode, the yardstick of benchmarks, takes changes.")

    # The service, and its clients.
    message_bytes_max: int = Field(default=512 * MIB, ge=1024, le=2000 * MIB, description="Largest message that the service takes, and that a client sends.")
    calls_max: Count = Field(default=128, ge=1, description="Calls that the service works on at once; further ones are refused for the moment.")
    uploads_bytes_max: Count = Field(default=4096 * MIB, ge=1, description="Bytes of large commits that the service keeps in files until they are made.")
    sessions_max: Count = Field(default=1024, ge=1, description="Producers that may be open over the network at once.")
    session_ttl_s: Seconds = Field(default=60.0, gt=0, description="A producer over the network that is silent for this long is ended; what it owes is lost.")
    snapshots_max: Count = Field(default=64, ge=1, description="Snapshots that the service holds for queries over the network at once.")
    snapshot_ttl_s: Seconds = Field(default=30.0, gt=0, description="A query over the network that is silent for this long loses its snapshot.")
    reconnect_s: Seconds = Field(default=30.0, ge=0, description="How long a client tries to reach a service that does not answer.")
    call_timeout_s: Seconds = Field(default=20.0, gt=0, description="How long a client waits for an answer before it looks whether the service is there.")
    stop_wait_s: Seconds = Field(default=10.0, ge=0, description="How long a stopping service waits for calls, for queries and for what lazy producers owe.")

    clock_skew_s: Seconds = Field(default=60.0, gt=0, description="How far a service lets itself be set ahead of its clock by the other services of a group.")

    # History.
    states_max: Count = Field(default=10_000, ge=1, description="Durable states the ledger remembers.")
    receipts_max: Count = Field(default=100_000, ge=1, description="Receipts the ledger remembers.")
    batches_max: Count = Field(default=1_000_000, ge=1, description="Batch ids the ledger remembers, newest first.")
    commits_max: Count = Field(default=1_000_000, ge=1, description="Commits per source whose times are remembered in memory.")
    file_grace_s: Seconds = Field(default=3600.0, ge=0, description="Age below which gc never removes an unreferenced file of an unknown writer.")
    checkpoint_versions: Count = Field(default=100, ge=1, description="A Delta checkpoint is written every so many versions.")

    # A warehouse in PostgreSQL.
    table_schema: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="PostgreSQL schema of the tables; default the one the warehouse was made with, public for a new one.",
    )
    ledger_schema: str = Field(default="righttime", min_length=1, max_length=63, description="PostgreSQL schema of the ledger and the write-ahead log.")
    state_dir: Path | None = Field(default=None, description="Folder for what stays local of a PostgreSQL warehouse; default ~/.local/state/righttime.")
    holds_max: Count = Field(default=32, ge=1, description="PostgreSQL transactions that queries hold open at once; further ones wait, then fail.")
    lock_wait_s: float = Field(
        default=10.0, gt=0, le=_LOCK_WAIT_S_MAX, allow_inf_nan=False, description="How long a PostgreSQL statement waits for a lock of somebody else."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _SettingsFile(settings_cls))


class _SettingsFile(TomlConfigSettingsSource):
    """`righttime.toml` without its table `[project]`, which is no setting: see `project.py`."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        found = super()._read_file(file_path)
        return {name: value for name, value in found.items() if name != "project" or not isinstance(value, dict)}


def load_settings(**overrides: Any) -> Settings:
    """Read settings from arguments, environment and `righttime.toml`; raise `BadSetting` naming the first bad one."""
    try:
        return Settings(**overrides)
    except (TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadSetting(name="righttime.toml", reason=f"the file cannot be read: {error}") from error
    except SettingsError as error:
        # Raised for a variable of the environment before anything is validated; only its text names the setting.
        named = re.search(r'field "(\w+)"', str(error))
        raise BadSetting(name=named[1] if named else "settings", reason=f"its text in the environment is no JSON ({error.__cause__})") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        raise BadSetting(name=name, reason=_reason(first, given_in=_place(name.partition(".")[0], overrides))) from error


def _place(name: str, overrides: Mapping[str, Any]) -> str:
    """Return where a setting was given: the first place that names it."""
    if name in overrides:
        return "the call"
    variable = f"RIGHTTIME_{name.upper()}"
    return variable if variable in map(str.upper, os.environ) else "righttime.toml"


def _reason(problem: ErrorDetails, *, given_in: str) -> str:
    kind, value = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return _unknown(str(problem["loc"][0]), value, given_in=given_in)
    words = _WRONG.get(kind, "").format(**problem.get("ctx", {})) or problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{value!r} in {given_in}: {words}"


def _unknown(name: str, value: object, *, given_in: str) -> str:
    if isinstance(value, dict):
        return f"{given_in} has a table of this name, which is none: settings stand above all tables, and those are [project] and [spark_conf]"
    near = get_close_matches(name, Settings.model_fields, n=1)
    return f"{given_in} has a setting of this name, and there is none" + (f"; did you mean {near[0]}" if near else "")
