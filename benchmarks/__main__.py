"""`python -m benchmarks [module ...] [--size S] [--rounds 3]`: run all figures, or those of the named modules, and write them down.

In: every module of this package that has `run() -> list[Figure]`; what `run` takes by these names is passed on.
Out: a table, and `benchmarks/results/<date>.json`.
Promise: exit code 1 only if a module failed; a missed goal is a fact to report, not a failure.
"""

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import platform
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.figure import Figure

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    """Run the named modules, all without names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="module")
    parser.add_argument("--size", choices=["XS", "S", "M"], help="how much the flows of flows* load")
    parser.add_argument("--rounds", type=int, help="how often what is quick is repeated in flows*")
    chosen = vars(parser.parse_args(arguments))
    names = chosen.pop("names")
    console = Console(width=None if sys.stdout.isatty() else 150)
    known = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]
    unknown = sorted(set(names) - set(known))
    if unknown:
        console.print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}")
        return 2
    options = {name: value for name, value in chosen.items() if value is not None}
    measured, failed = _run([name for name in known if name in names or not names], console, options)
    console.print(_table(measured))
    console.print(f"written to {_write(measured)}")
    return 1 if failed else 0


def _run(names: list[str], console: Console, options: dict[str, Any]) -> tuple[dict[str, list[Figure]], list[str]]:
    measured: dict[str, list[Figure]] = {}
    failed = []
    for name in names:
        run = getattr(importlib.import_module(f"benchmarks.{name}"), "run", None)
        if run is None:
            continue
        console.print(f"== {name}")
        begun_s = time.perf_counter()
        try:
            taken = {option: value for option, value in options.items() if option in inspect.signature(run).parameters}
            measured[f"{name} {taken['size']}" if "size" in taken else name] = run(**taken)
        except Exception:  # one broken figure must not cost the others
            console.print(traceback.format_exc(), markup=False)
            failed.append(name)
        console.print(f"== {name}: {time.perf_counter() - begun_s:.0f} s")
    return measured, failed


def _table(measured: dict[str, list[Figure]]) -> Table:
    table = Table("figure", "unit", "ours", "rival", "ratio", "goal", "met", "note")
    for figure in (figure for figures in measured.values() for figure in figures):
        goal = "" if figure.goal is None else f"{'≥' if figure.at_least else '≤'} {figure.goal:g}"
        met = {True: "yes", False: "no", None: ""}[figure.met]
        table.add_row(figure.name, figure.unit, _number(figure.ours), _number(figure.rival), _number(figure.ratio), goal, met, figure.note)
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _write(measured: dict[str, list[Figure]]) -> Path:
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%d}.json"
    machine = {"python": platform.python_version(), "system": platform.system(), "processor": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    before = json.loads(path.read_text())["figures"] if path.exists() else {}
    figures = before | {name: [_plain(figure) for figure in of_one] for name, of_one in measured.items()}
    path.write_text(json.dumps({"written": now.isoformat(timespec="seconds"), "machine": machine, "figures": figures}, indent=1) + "\n")
    return path


def _plain(figure: Figure) -> dict[str, Any]:
    fields = ("name", "unit", "ours", "rival", "ratio", "goal", "at_least", "met", "note", "context")
    return {name: getattr(figure, name) for name in fields}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
