"""Pictures of a job's way for its report. The one door to matplotlib, imported only when pictures are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heterotrain_operator.local.compare import Run
from heterotrain_operator.local.watch import HistoryPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_INCHES: Final = (8.0, 4.0)
COMPARISON_PICTURE: Final = "comparison.png"
NO_PLOTS: Final = "None: they need the package matplotlib, which is not installed: pip install 'heterotrain[plots]'"


def can_draw() -> bool:
    """Whether there is a matplotlib (extra ``plots``)."""
    return find_spec("matplotlib") is not None


def draw_plots(history: Sequence[HistoryPoint], folder: Path) -> tuple[str, ...]:
    """Draw throughput, shares and reported values over time into `folder`; returns the names of the files.

    Nothing is drawn of what was never seen, nor where `can_draw` is false.
    """
    trained = [point for point in history if point.round > 0]
    if len(trained) < 2 or not can_draw():
        return ()
    drawings: list[tuple[str, Callable[[Axes, Sequence[HistoryPoint]], None]]] = [
        ("throughput.png", _throughput),
        ("shares.png", _shares),
    ]
    if any(point.reported for point in trained):
        drawings.append(("reported.png", _reported))
    for name, draw in drawings:
        _draw(folder / name, trained, draw)
    return tuple(name for name, _ in drawings)


def draw_comparison(runs: Sequence[Run], folder: Path) -> tuple[str, ...]:
    """Draw the throughput of some runs over time into `folder`, as `draw_plots` does for one."""
    if not can_draw():
        return ()
    figure, axes = _canvas()
    for run in runs:
        points = run.report.history
        seconds = [point.seconds for point in points]
        (line,) = axes.plot(seconds, [point.samples_per_second for point in points], label=run.name)
        ideal = [point.ideal_samples_per_second for point in points]
        axes.plot(seconds, ideal, "--", linewidth=1, color=line.get_color(), label=f"{run.name}: ideal")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    _save(figure, axes, folder / COMPARISON_PICTURE)
    return (COMPARISON_PICTURE,)


def _draw(path: Path, points: Sequence[HistoryPoint], draw: Callable[[Axes, Sequence[HistoryPoint]], None]) -> None:
    figure, axes = _canvas()
    draw(axes, points)
    _save(figure, axes, path)


def _canvas() -> tuple[Figure, Axes]:
    # Figure with its own canvas: no window system, and no global state as pyplot has.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    return figure, FigureCanvasAgg(figure).figure.add_subplot()


def _save(figure: Figure, axes: Axes, path: Path) -> None:
    axes.set_xlabel("training time, seconds")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def _throughput(axes: Axes, points: Sequence[HistoryPoint]) -> None:
    seconds = [point.seconds for point in points]
    axes.plot(seconds, [point.samples_per_second for point in points], label="reached")
    axes.plot(seconds, [point.ideal_samples_per_second for point in points], "--", label="ideal")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)


def _shares(axes: Axes, points: Sequence[HistoryPoint]) -> None:
    seconds = [point.seconds for point in points]
    for worker in points[-1].shares:
        axes.step(seconds, [point.shares.get(worker, 0) for point in points], where="post", label=worker)
    axes.set_ylabel("share, samples a round")
    axes.set_ylim(bottom=0)


def _reported(axes: Axes, points: Sequence[HistoryPoint]) -> None:
    for name in sorted({name for point in points for name in point.reported}):
        known = [(point.seconds, point.reported[name]) for point in points if name in point.reported]
        axes.plot(*zip(*known, strict=True), marker=".", label=name)
    axes.set_ylabel("reported value")
