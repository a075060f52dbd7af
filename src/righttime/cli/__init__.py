"""The command line: `righttime demo | init | dry-run | run | serve | sql | explain | status | receipt | materialize | gc`.

In: arguments, and `RIGHTTIME_WAREHOUSE` for the folder.
Out: answers on standard output, everything about them on standard error, and an exit code.
Promise: an error is one line with its code and the way out, exit code 1; wrong usage is exit code 2; only `demo`, `run` and `serve` create a warehouse.
"""

import atexit
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from righttime import __version__
from righttime.cli import care, dry_run, explain, init, receipt, run_flows, serve, sql, status
from righttime.cli.console import err, error_line
from righttime.cli.demo.command import demo
from righttime.flight.server import calls_under_way
from righttime.telemetry import configure

__all__ = ["main", "run"]

app = typer.Typer(
    name="righttime",
    help="A right-time data warehouse for PySpark: ask for the freshness you need, and get the answer with a receipt.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command(name="init")(init.init)
app.command(name="dry-run")(dry_run.dry_run)
app.command(name="run")(run_flows.run_flows)
app.command(name="serve")(serve.serve)
app.command(name="sql")(sql.sql)
app.command(name="explain")(explain.explain)
app.command(name="status")(status.status)
app.add_typer(receipt.app)
app.command()(care.materialize)
app.command()(care.gc)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"righttime {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Show events on standard error; twice for more.")] = 0,
    log_json: Annotated[bool, typer.Option("--log-json", help="Show events as JSON, one per line.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if verbose or log_json:
        configure("debug" if verbose > 1 else "info", json=log_json)


def main() -> None:
    """Run the command line of this process and end it with the exit code."""
    _be_plainly_interrupted()
    code = run(sys.argv[1:])
    if calls_under_way():
        # Everything is closed and durable. Python cannot be taken down around a call that is still carried out: it would wait for it, or break.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    debug = "--debug" in arguments
    try:
        app(list(arguments), prog_name="righttime")
    except SystemExit as end:
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):  # Typer has made an exit of it
            err().print("Interrupted.")
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # before it could, or after
        err().print("Interrupted.")
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain about it once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        err().print(error_line(error, debug=debug), soft_wrap=True)
        return 1
    return 0


def _be_plainly_interrupted() -> None:
    """Let Ctrl-C end a command, and do nothing else: PySpark's handler begins a call to Java, maybe inside another one, and py4j shows where it was."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)  # not Python's own, so that Spark's start leaves it in place
        logging.getLogger().addFilter(lambda record: record.msg != "KeyboardInterrupt while sending command.")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
