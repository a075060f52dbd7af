"""Plots as SVG, drawn by hand: bars in groups, and lines.

In: numbers by name.
Out: one file that any browser shows.
Promise: no package is needed; each plot names the command that made it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

_WIDTH, _HEIGHT = 860, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 70, 90
_COLOURS = ("#2166ac", "#b2182b", "#4d9221", "#e08214", "#762a83", "#555555")
Place = Callable[[float], float]


def bars(path: Path, title: str, unit: str, groups: Mapping[str, Mapping[str, float]], *, command: str) -> Path:
    """Draw for each group one bar per series."""
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    top = max((value for group in groups.values() for value in group.values()), default=1.0) or 1.0
    up = _linear(0.0, top, _HEIGHT - _BOTTOM, _TOP)
    wide = (_WIDTH - _LEFT - _RIGHT) / max(len(groups), 1)
    thick = wide * 0.8 / max(len(series), 1)
    drawn = _axis(up, _ticks(top), unit)
    for place, (name, group) in enumerate(groups.items()):
        left = _LEFT + place * wide + wide * 0.1
        drawn.append(_text(left + wide * 0.4, _HEIGHT - _BOTTOM + 18, name, anchor="middle"))
        for number, each in enumerate(series):
            if each in group:
                drawn.append(_bar(left + number * thick, up(group[each]), thick, _COLOURS[number % len(_COLOURS)], f"{name}, {each}: {group[each]:.3g} {unit}"))
    return _write(path, title, series, drawn, command)


def lines(
    path: Path, title: str, axes: tuple[str, str], series: Mapping[str, Sequence[tuple[float, float]]], *, command: str, logarithmic: bool = False
) -> Path:
    """Draw one line per series over numbers; with logarithmic scales if asked for."""
    points = [point for of_one in series.values() for point in of_one]
    columns, heights = [x for x, _ in points], [y for _, y in points]
    if logarithmic:
        across = _logarithmic(min(columns), max(columns), _LEFT + 20, _WIDTH - _RIGHT - 20)
        up = _logarithmic(min(heights), max(heights), _HEIGHT - _BOTTOM - 10, _TOP)
        drawn = _axis(up, sorted({min(heights), *_decades(min(heights), max(heights)), max(heights)}), axes[1])
    else:
        across = _linear(min(columns), max(columns), _LEFT + 20, _WIDTH - _RIGHT - 20)
        up = _linear(0.0, max(heights), _HEIGHT - _BOTTOM, _TOP)
        drawn = _axis(up, _ticks(max(heights)), axes[1])
    drawn += [_text(across(x), _HEIGHT - _BOTTOM + 18, f"{x:,g}", anchor="middle") for x in sorted(set(columns))]
    drawn.append(_text(_WIDTH / 2, _HEIGHT - _BOTTOM + 38, axes[0], anchor="middle"))
    for number, (name, of_one) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(across(x), up(y)) for x, y in sorted(of_one)]
        drawn.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        for (x, y), (_, value) in zip(places, sorted(of_one), strict=True):
            drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(name)}: {value:.3g}</title></circle>')
    return _write(path, title, list(series), drawn, command)


def _linear(low: float, high: float, begin: float, end: float) -> Place:
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _logarithmic(low: float, high: float, begin: float, end: float) -> Place:
    place = _linear(math.log10(low), math.log10(high), begin, end)
    return lambda value: place(math.log10(value))


def _ticks(top: float) -> list[float]:
    """Return about five round numbers from 0 to the top."""
    step = 10 ** math.floor(math.log10(top / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if top / (step * factor) <= 6)
    return [number * step for number in range(int(top / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _axis(up: Place, ticks: Sequence[float], unit: str) -> list[str]:
    drawn = [_text(_LEFT - 50, _TOP - 12, unit)]
    for tick in ticks:
        y = up(tick)
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        drawn.append(_text(_LEFT - 6, y + 4, f"{tick:,.3g}", anchor="end"))
    return drawn


def _bar(x: float, y: float, wide: float, colour: str, tip: str) -> str:
    high = max(_HEIGHT - _BOTTOM - y, 0)
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide * 0.92:.1f}" height="{high:.1f}" fill="{colour}"><title>{escape(tip)}</title></rect>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _write(path: Path, title: str, series: Sequence[str], drawn: Sequence[str], command: str) -> Path:
    legend, x = [], float(_LEFT)
    for number, name in enumerate(series):
        legend.append(f'<rect x="{x:.1f}" y="34" width="12" height="12" fill="{_COLOURS[number % len(_COLOURS)]}"/>' + _text(x + 17, 44, name))
        x += 34 + 7 * len(name)
    content = [_text(_LEFT, 22, title, size=15), *legend, *drawn, _text(_LEFT, _HEIGHT - 14, f"made by: {command}", size=11)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *content, "</svg>"]) + "\n")
    return path
