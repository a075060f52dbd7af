"""SparkOwner over the life of a process: who starts Spark, who stops it, and what the terminal sees."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from righttime.pipeline.java import find_java
from tests.support.waits import until


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python process of its own, in a folder of its own."""
    prelude = """
        from pyspark.sql import SparkSession
        from righttime.errors import BadSetting
        from righttime.pipeline.spark import SparkOwner
        from righttime.settings import load_settings
        def owner(master="local[1]"):
            return SparkOwner(load_settings(spark_master=master))
    """
    text = textwrap.dedent(prelude) + textwrap.dedent(program)
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{text}"]
    # A user with a session of his own has a Java of his own.
    environment = {**os.environ, "JAVA_HOME": str(find_java())}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240)


def test_our_session_is_quiet_restarts_after_stop_and_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    """A library writes nothing to the terminal and nothing to the working directory."""
    done = run(
        """
        first, second = owner(), owner()
        a, b = first.session(), second.session()
        assert a is b
        first.stop()
        assert second.started and b.range(2).count() == 2
        second.stop()
        assert SparkSession.getActiveSession() is None
        assert first.session().range(3).count() == 3
        first.stop()
        """,
        tmp_path,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_session_of_the_user_is_used_and_outlives_us(tmp_path: Path) -> None:
    """Whoever started Spark stops it. A session stopped behind our back is replaced on the next need."""
    done = run(
        """
        theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").appName("theirs").getOrCreate()
        ours = owner()
        assert ours.session() is theirs
        assert ours.child().conf.get("spark.sql.session.timeZone") == "UTC"
        ours.stop()
        assert theirs.range(2).count() == 2
        assert ours.session() is theirs
        theirs.stop()
        assert not ours.started
        assert ours.session().sparkContext.appName == "righttime"
        ours.stop()
        """,
        tmp_path,
    )

    assert done.returncode == 0, done.stderr


def test_a_master_that_does_not_exist_is_a_setting_error(tmp_path: Path) -> None:
    """The message names the setting, and the next owner can still start."""
    done = run(
        """
        try:
            owner("no-such-master").session()
        except BadSetting as error:
            assert "spark_master" in str(error), error
        else:
            raise SystemExit("no error")
        assert owner().session().range(2).count() == 2
        """,
        tmp_path,
    )

    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_java_starts_leaves_no_java_behind(tmp_path: Path) -> None:
    """The interrupt comes when Java is there, which then ends with the process."""
    done = run(
        """
        import os, signal, threading
        from pyspark import java_gateway
        start = java_gateway.Popen
        def noted(*arguments, **options):
            process = start(*arguments, **options)
            print(process.pid, flush=True)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            return process
        java_gateway.Popen = noted
        try:
            owner().session()
        except KeyboardInterrupt:
            print("interrupted")
        """,
        tmp_path,
    )

    assert (done.returncode, done.stderr) == (0, "")
    java, said = done.stdout.split()
    assert said == "interrupted"
    try:
        until(lambda: not Path(f"/proc/{java}").exists())
    except AssertionError:
        os.kill(int(java), signal.SIGKILL)
        raise
