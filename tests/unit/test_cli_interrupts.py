"""Ctrl-C on the command line: one word and the exit code, whatever it met."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from righttime.cli import app, run

PRESSED_IN_SPARK = """
import logging, signal, sys
from righttime.cli import app, main

@app.command()
def pressed() -> None:
    # As PySpark and py4j do: one puts its handler in the place of Python's own, the other logs where it was interrupted.
    from righttime.pipeline.spark import _same_interrupt
    with _same_interrupt():
        signal.signal(signal.SIGINT, lambda *_: print("PySpark's handler calls Java", file=sys.stderr))
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        logging.exception("KeyboardInterrupt while sending command.")
        raise

sys.argv = ["righttime", "pressed"]
main()
"""


def test_an_interrupted_command_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer ends with the exit code and without a word."""

    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
    app.command()(pressed)
    assert (run(["pressed"]), capsys.readouterr().err) == (130, "Interrupted.\n")


def test_ctrl_c_in_a_call_to_java_shows_no_traceback(tmp_path: Path) -> None:
    """In the handler of PySpark another call to Java began, inside the one that was interrupted, and both were shown with their tracebacks."""
    ended = subprocess.run([sys.executable, "-c", PRESSED_IN_SPARK], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (130, "Interrupted.\n")


def test_a_command_that_was_told_to_ignore_ctrl_c_still_does(tmp_path: Path) -> None:
    """As one is that a shell starts in the background."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv[1:] = ['--version']\n"
    code += "from righttime.cli import main\ntry: main()\nfinally: print(signal.getsignal(signal.SIGINT).name)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines()[-1] == signal.SIG_IGN.name
