"""The one owner of a Spark session: starts it on first need, hands out child sessions, reads and writes file lists.

In: settings, pinned file lists, DataFrames of users.
Out: relations over exactly the named files, Parquet files of exactly the named columns.
Promise: a session that the user started is used and never stopped; our queries do not depend on how the user set theirs up.
"""

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from righttime.changes.interrupts import uninterrupted
from righttime.errors import BadSetting, NullNotAllowed, SqlFailed, UnknownColumn, WrongType
from righttime.errors.spark_words import in_short
from righttime.pipeline.hidden import Hidden, hidden_files, is_shown
from righttime.pipeline.java import find_java
from righttime.pipeline.jvm import java_class
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("spark")

# What the meaning of an answer depends on. Set in every child session, whoever started the parent.
CHILD_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.python.filterPushdown.enabled": "false",
    # A snapshot may name thousands of files; listing them must not start a Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
MEMORY_GIB_MAX = 4

# A folder's name may hold [ or *: these are names, not patterns. Escaped one by one, because with patterns switched off
# (`__globPaths__`) Spark 4.3 reads the whole list once for every such path (SPARK-58518).
_GLOB = re.compile(r"[{}\[\]*?\\]")

_NULL_MARK = "righttime.null:"
_NULL_COLUMN = re.compile(re.escape(_NULL_MARK) + r"(\w+)")
_CAST_CONDITIONS = ("CAST_OVERFLOW", "CAST_INVALID_INPUT", "NUMERIC_VALUE_OUT_OF_RANGE", "ARITHMETIC_OVERFLOW")

# Several warehouses in one process share one session; the last one to let go of it stops it.
_shared = threading.RLock()
_started_context: SparkContext | None = None
_holders: set["SparkOwner"] = set()


class SparkOwner:
    """Spark for one warehouse handle; safe to call from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: SparkSession | None = None
        self._template: SparkSession | None = None  # of the children
        self._overrides = False  # whether Spark sets children up, too

    @property
    def started(self) -> bool:
        """Whether this owner holds a live session; asking starts nothing."""
        return self._session is not None and _is_alive(self._session)

    def session(self) -> SparkSession:
        """Return the user's Spark session if there is one, else start our own: about 5 s; raises `JavaMissing`."""
        global _started_context
        with _shared:
            if self._session is None or not _is_alive(self._session):
                if SparkContext._active_spark_context is None:
                    self._session = _start(self._settings)
                    _started_context = self._session.sparkContext
                else:
                    self._session = SparkSession.builder.getOrCreate()
                if self._session.sparkContext is _started_context:
                    _holders.add(self)
            return self._session

    def child(self) -> SparkSession:
        """Return a new session of the same Spark, with its own views and with the settings that our answers rely on."""
        with _shared:
            session = self.session()
            if self._template is None or self._template.sparkContext is not session.sparkContext:
                # With this one, Spark gives also a clone what its own configuration says.
                self._overrides = session.conf.get("spark.sql.legacy.sessionInitWithConfigDefaults", "false") == "true"
                self._template = set_up(session.newSession(), CHILD_CONF)
            template = self._template
        # A clone takes one call to the JVM; a session that is set up anew takes eighteen, for every query.
        child = SparkSession.__new__(SparkSession)
        child.__dict__ = {name: value for name, value in template.__dict__.items() if name != "conf"}
        child._jsparkSession = template._jsparkSession.cloneSession()
        return set_up(child, CHILD_CONF) if self._overrides else child

    def relation(self, child: SparkSession, columns: pa.Schema, files: Sequence[str], *, hidden: Hidden | None = None) -> DataFrame:
        """Return a fresh relation over exactly these Parquet files, without the rows at the positions in `hidden`, by file.

        Read in one scan, and a second one over the files that have hidden rows; no file gives no rows.
        """
        touched = {file: hidden[file] for file in files if len(hidden.get(file, ()))} if hidden else {}
        untouched = [file for file in files if file not in touched]
        parts = [scan_files(child, columns, untouched)] if untouched or not touched else []
        for some in hidden_files(child, touched):
            parts.append(scan_files(child, columns, [file.path for file in some]).where(is_shown(child, some)))
        return reduce(DataFrame.unionByName, parts)

    def write_parquet(self, df: DataFrame, columns: pa.Schema, folder: Path, *, table: str = "") -> None:
        """Let the executors write `df` into the new folder `folder`, its columns matched by name and cast as by an INSERT; raises as `insert` does."""
        _check_columns(df, columns, table=table)
        child = self.child()
        # The frame is planned again in our session, so that the user's settings cannot change what is written.
        plan = df._jdf.queryExecution().analyzed()
        ours = DataFrame(java_class(child, "org.apache.spark.sql.classic.Dataset").ofRows(child._jsparkSession, plan), child)
        try:
            checked = _without_forbidden_nulls(ours.to(_all_nullable(columns)), columns)
            writer = checked.write.mode("error").option("compression", "zstd").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            writer.parquet(f"file://{folder.absolute()}")
        except PySparkException as error:
            raise _refusal(error, table=table, cast=_cast_columns(df, columns)) from error

    def stop(self) -> None:
        """Let go of the session; stop it if we started it and no other warehouse of this process holds it."""
        global _started_context
        with _shared:
            session, self._session, self._template = self._session, None, None
            held = self in _holders
            _holders.discard(self)
            if session is None or not held or _holders or not _is_alive(session):
                return
            session.stop()
            _started_context = None
            log.info("spark.stopped")


def set_up(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Give a session its configuration, and return it."""
    for name, value in conf.items():
        session.conf.set(name, value)
    return session


def scan_files(child: SparkSession, columns: pa.Schema, files: Sequence[str]) -> DataFrame:
    """Return a fresh relation over exactly these Parquet files, in one scan."""
    # One string and one split: handing over a list costs a round trip to the JVM per file.
    separated = "\n".join(_GLOB.sub(r"\\\g<0>", f"file://{file}" if file.startswith("/") else file) for file in files)
    paths = java_class(child, "org.apache.commons.lang3.StringUtils").split(separated, "\n")
    session: Any = child._jsparkSession
    return DataFrame(session.read().schema(session.parseDataType(_as_json(columns))).parquet(paths), child)


def _start(settings: Settings) -> SparkSession:
    begun_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="righttime-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    conf = SparkConf(loadDefaults=False).setAll(list(_session_conf(settings, folder=folder).items()))
    with _java_home(find_java()), (folder / "spark.log").open("w") as output:
        try:
            gateway = SparkContext._gateway or _launch(conf, output)  # a process keeps one JVM for good
            with _same_interrupt():
                session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except Exception as error:
            raise BadSetting(name="spark_master, spark_conf", reason=f"Spark does not start: {_last_line(folder / 'spark.log') or error}") from error
    if _local_cores(settings.spark_master):
        # Workers on this machine run with the Python that has our libraries, not with the first one on the path.
        session.sparkContext.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
    log.info("spark.started", master=settings.spark_master, seconds=round(time.monotonic() - begun_s, 3), log=str(folder / "spark.log"))
    return session


def _launch(conf: SparkConf, output: TextIO) -> Any:
    """Start a JVM that ends when this process does, and not before: whoever signals a whole process group or service means us, and we need it to stop well."""
    # It writes notices to its output that belong in no user's terminal. If Ctrl-C came in between, PySpark would take away the folder in which the JVM says
    # where it listens, and a JVM that cannot say so waits for ever.
    with uninterrupted():
        gateway: Any = launch_gateway(conf, {"stdout": output, "stderr": output, "start_new_session": True})  # type: ignore[no-untyped-call]
    if gateway.proc is not None:  # else spark-submit has started it, and us
        signals = gateway.jvm.sun.misc
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
    return gateway


@contextmanager
def _same_interrupt() -> Iterator[None]:
    """Keep what the program does on Ctrl-C, if that is something of its own: PySpark puts its handler in the place of any other."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if before not in (None, signal.default_int_handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if "Error" in line or "Exception" in line]
    return lines[-1].strip() if lines else ""


def _session_conf(settings: Settings, *, folder: Path) -> dict[str, str]:
    """Return the configuration of a session of ours: quiet, and quick on short queries."""
    conf = {
        "spark.app.name": "righttime",
        "spark.master": settings.spark_master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": f"{_memory_gib()}g",
        # Queries wait for drains, so a drain must not wait behind the tasks of all queries that came before it: it has a pool of its own.
        "spark.scheduler.mode": "FAIR",
        # A drain comes back in one go, bounded by the rows that it gives (drain_output_rows_max); the default of 1 GiB is less than a wide one needs.
        "spark.driver.maxResultSize": "2g",
        # Our files carry checksums of their pages; a flipped bit is an error, not an answer.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        # Queries and drains compile code all the time; of 240 MB, the default, the JVM soon throws some away, and collects garbage to find out which.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')} -Dderby.system.home={folder}"
        " -XX:ReservedCodeCacheSize=512m",
        # Each thread of these pools keeps the session alive that it was first used by, 0.4 MB; the default is 1,024 threads each.
        "spark.sql.shuffleExchange.maxThreadThreshold": str(2 * settings.queries_max),
        "spark.sql.resultQueryStage.maxThreadThreshold": str(settings.queries_max),
        # A drain of a flow compiles about a hundred pieces of code; kept, the next drain finds them. The default is 100 for all sessions.
        "spark.sql.codegen.cache.maxEntries": "5000",
        # What a user interface would show, made and kept in memory even without one. Each plan is put into words, and again whenever it changes.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        **CHILD_CONF,
    }
    cores = _local_cores(settings.spark_master)
    if cores:
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The default of 200 costs 3 s on a table of 1,000 small files; adaptive execution splits large ones again.
            "spark.sql.shuffle.partitions": str(cores),
            # Opening a local file costs what reading 64 KiB costs, not 4 MiB: fewer, fuller tasks over small files.
            "spark.sql.files.openCostInBytes": "65536",
            # A drain is one task. Each of its joins and windows takes a page, however few rows it has: of 64 MiB, the default, memory has thirty.
            "spark.buffer.pageSize": "4m",
        }
    return conf | settings.spark_conf


def _local_cores(master: str) -> int:
    """Return the cores of a local master, 0 if the master is a cluster's."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if match is None:
        return 0
    return len(os.sched_getaffinity(0)) if match.group(1) == "*" else int(match.group(1) or "1")


def _memory_gib() -> int:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return max(1, min(MEMORY_GIB_MAX, pages * page_bytes // 2**30 // 4))


@contextmanager
def _java_home(home: Path) -> Iterator[None]:
    """Name the Java for the processes that are started meanwhile."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


def _is_alive(session: SparkSession) -> bool:
    return session.sparkContext._jsc is not None


@lru_cache(maxsize=1024)
def _as_json(columns: pa.Schema) -> str:
    return _all_nullable(columns).json()


def _all_nullable(columns: pa.Schema) -> StructType:
    return from_arrow_schema(pa.schema([field.remove_metadata() for field in columns])).toNullable()


def _check_columns(df: DataFrame, columns: pa.Schema, *, table: str) -> None:
    known = {name.lower() for name in columns.names}
    given = [name.lower() for name in df.columns]
    for name in df.columns:
        if name.lower() not in known:
            raise UnknownColumn(table=table, column=name, known=", ".join(columns.names))
    for field in columns:
        if not field.nullable and field.name.lower() not in given:
            raise NullNotAllowed(table=table, column=field.name, why="missing in the DataFrame, NOT NULL")


def _without_forbidden_nulls(df: DataFrame, columns: pa.Schema) -> DataFrame:
    required = [field.name for field in columns if not field.nullable]
    checks = {name: F.when(df[f"`{name}`"].isNull(), F.raise_error(F.lit(_NULL_MARK + name))).otherwise(df[f"`{name}`"]) for name in required}
    return df.withColumns(checks) if checks else df


def _cast_columns(df: DataFrame, columns: pa.Schema) -> list[str]:
    given = {field.name.lower(): field.dataType.simpleString() for field in df.schema}
    return [field.name for field in _all_nullable(columns) if given.get(field.name.lower()) not in (None, field.dataType.simpleString())]


def _refusal(error: PySparkException, *, table: str, cast: list[str]) -> Exception:
    """Say in our own terms why Spark did not write the rows; `cast` names the columns whose values had to be converted."""
    text = str(error)
    reason = in_short(text.split("\n", 1)[0])
    null = _NULL_COLUMN.search(text)
    if null is not None:
        return NullNotAllowed(table=table, column=null.group(1), why="NOT NULL")
    if (error.getCondition() or "").startswith("INVALID_COLUMN_OR_FIELD_DATA_TYPE"):
        column = re.search(r"`(\w+)`", reason)
        return WrongType(table=table, column=column.group(1) if column else ", ".join(cast), value="the DataFrame's column", expected=f"the table's ({reason})")
    if any(condition in text for condition in _CAST_CONDITIONS):
        return WrongType(table=table, column=", ".join(cast), value="a value of the DataFrame", expected=f"the column ({reason})")
    return SqlFailed(tables=table, reason=reason)
