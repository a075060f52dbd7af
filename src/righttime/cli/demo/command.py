"""`righttime demo`: the main job of the product, in about a minute.

In: a folder or none, a number of seconds.
Out: the display on standard output, exit code 0 if every check holds.
Promise: without `--folder` and `--keep` nothing stays behind, also after Ctrl-C.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from righttime.cli.console import WIDE, err, out, plain
from righttime.cli.demo import display
from righttime.cli.demo.stage import Result, Stage
from righttime.client import open

FRAME_S = 0.25
LINE_S = 5.0


def demo(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Option(metavar="PATH", help="Where to write, a new or empty folder; kept. Default: a temporary one.")] = None,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long the readers ask.")] = 30.0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
) -> None:
    """Open a shop: three loaders, four readers, every answer with a receipt that verifies. About a minute."""
    console = out(pipe_width=WIDE)
    with _place(folder, keep=keep) as place:
        console.print(f"Writing to {plain(place)}{'' if folder or keep else ' (removed at the end; --keep keeps it)'}", soft_wrap=True)
        verbose = context.parent is not None and bool(context.parent.params.get("verbose") or context.parent.params.get("log_json"))
        try:
            result = _run(console, place, seconds, live=console.is_interactive and not os.environ.get("CI") and not verbose)
        except KeyboardInterrupt:
            err().print("Stopped: the shop is closed, nothing is left open.")
            raise typer.Exit(130) from None
        console.print(display.closing(result, width=console.width))
        if folder or keep:
            console.print(f"\n[bold]Next[/]\n{_next_steps(place, result)}", soft_wrap=True)
        else:
            console.print("\n[bold]Next[/]\nrighttime demo --keep leaves the shop there, for queries of your own.")
    if not result.ok:
        err().print("The demo found a broken promise; see the checks above.", style="bold red")
        raise typer.Exit(1)


@contextmanager
def _place(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    if folder is not None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise typer.BadParameter(f"{folder} is not a new or empty folder", param_hint="--folder")
        yield folder
        return
    place = Path(tempfile.mkdtemp(prefix="righttime-demo-"))
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def _run(console: Console, place: Path, seconds: float, *, live: bool) -> Result:
    with open(place) as wh:
        stage = Stage(wh)
        try:
            stage.open()
            return _watch_live(stage, console, seconds) if live else _watch_plainly(stage, console, seconds)
        except KeyboardInterrupt:
            err().print("Closing the shop …")
            raise
        finally:
            stage.close()


def _watch_live(stage: Stage, console: Console, seconds: float) -> Result:
    with Live(console=console, refresh_per_second=1 / FRAME_S, transient=True) as screen:
        for phase, elapsed_s, total_s in _phases(stage, seconds, every_s=FRAME_S):
            screen.update(display.picture(stage, elapsed_s=elapsed_s, total_s=total_s, phase=phase, width=console.width))
        return stage.finish()


def _watch_plainly(stage: Stage, console: Console, seconds: float) -> Result:
    console.print(display.INTRODUCTION)
    for phase, elapsed_s, _ in _phases(stage, seconds, every_s=LINE_S):
        console.print(display.plain_line(stage, elapsed_s=elapsed_s, phase=phase), soft_wrap=True)
    return stage.finish()


def _phases(stage: Stage, seconds: float, *, every_s: float) -> Iterator[tuple[str, float, float]]:
    """Give phase, time since the opening and time in total until the readers have asked for `seconds`."""
    ready_s: float | None = None
    while ready_s is None or time.monotonic() < ready_s + seconds:
        now_s = time.monotonic()
        if ready_s is None and stage.spark_ready.is_set():
            ready_s = now_s
        total_s = seconds + (ready_s - stage.opened_s if ready_s is not None else 8.0)
        phase = "selling and asking" if ready_s is not None else "selling already, while Spark starts"
        yield phase, now_s - stage.opened_s, total_s
        stage.pause(min(every_s, max(ready_s + seconds - now_s, 0.01) if ready_s is not None else every_s))
    yield "checking every answer", time.monotonic() - stage.opened_s, time.monotonic() - stage.opened_s


def _next_steps(place: Path, result: Result) -> str:
    newest = result.answers[-1].receipt.receipt_id[:8]
    lines = (
        f'righttime sql "SELECT category, count(*) FROM sale JOIN product USING (product_id) GROUP BY category" -w {place}',
        f"righttime status -w {place}",
        f"righttime receipt show {newest} -w {place}",
        f"righttime receipt verify {newest} -w {place}",
    )
    return "\n".join(plain(line) for line in lines)
