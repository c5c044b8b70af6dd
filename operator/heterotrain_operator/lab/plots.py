"""Pictures of a lab's result: throughput, shares and accuracy over time. The first seed of each variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heterotrain_operator.lab.document import Result, RunFigures
from heterotrain_operator.lab.figures import TARGET_ACCURACY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES: Final = (9.0, 4.5)
ADAPTED: Final = "adaptation"


def draw(result: Result, folder: Path) -> tuple[str, ...]:
    """Draw into `folder`; returns the names of the files. Without matplotlib (extra ``plots``) there are none."""
    if find_spec("matplotlib") is None:
        return ()
    runs = [found[0] for name in result.names if (found := result.of(name))]
    drawings: list[tuple[str, Callable[[Axes, Sequence[RunFigures]], None], Sequence[RunFigures]]] = [
        ("throughput.png", _throughput, runs),
        ("shares.png", _shares, [run for run in runs if run.name == ADAPTED]),
        ("accuracy.png", _accuracy, [run for run in runs if run.accuracy]),
    ]
    wanted = [drawing for drawing in drawings if drawing[2]]
    for name, function, shown in wanted:
        _draw(folder / name, result, function, shown)
    return tuple(name for name, _, _ in wanted)


def _draw(
    path: Path, result: Result, function: Callable[[Axes, Sequence[RunFigures]], None], runs: Sequence[RunFigures]
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = FigureCanvasAgg(figure).figure.add_subplot()
    function(axes, runs)
    if function is _throughput:
        axes.axhline(result.ideal, linestyle="--", color="black", linewidth=1, label="ideal (all at first speed)")
    _mark_disturbances(axes, runs)
    axes.axvline(result.warm_up_seconds, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("seconds; measured from the dotted line on")
    axes.set_title(f"{result.setup.name}, level {result.level}, batch {result.batch}", fontsize="medium")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def _throughput(axes: Axes, runs: Sequence[RunFigures]) -> None:
    for run in runs:
        axes.plot(*zip(*run.throughput, strict=True), label=run.name, linewidth=2 if run.name == ADAPTED else 1)
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)


def _shares(axes: Axes, runs: Sequence[RunFigures]) -> None:
    for run in runs:
        end = run.throughput[-1][0]
        for worker, steps in enumerate(run.shares_over_time):
            times, samples = zip(*steps, (end, steps[-1][1]), strict=True)
            axes.step(times, samples, where="post", label=f"worker {worker}")
    axes.set_ylabel("share, samples a round")
    axes.set_ylim(bottom=0)


def _accuracy(axes: Axes, runs: Sequence[RunFigures]) -> None:
    for run in runs:
        axes.plot(*zip(*run.accuracy, strict=True), label=run.name, marker=".")
    axes.axhline(TARGET_ACCURACY, linestyle="--", color="black", linewidth=1)
    axes.set_ylabel("test accuracy")


def _mark_disturbances(axes: Axes, runs: Sequence[RunFigures]) -> None:
    """The time in which the set-up slowed a worker down, in the adapted run: in others it comes at another time."""
    for run in runs:
        for begin, end in run.disturbed if run.name == ADAPTED or len(runs) == 1 else ():
            axes.axvspan(begin, end, color="tab:red", alpha=0.12, label=f"worker slowed down ({run.name})")
