"""What the user sees while a job runs: a live table on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from enum import StrEnum
from typing import IO, Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from heterotrain_operator.local.watch import share_in_force
from heterotrain_rpc import control_pb2

PLAIN_INTERVAL_SECONDS: Final = 5.0
REPORTED_INTERVAL_SECONDS: Final = 1.0
"""Reported values may come many times a second; a line for each would be no help."""
_PHASES: Final = {
    control_pb2.PHASE_WAITING: "waiting for workers",
    control_pb2.PHASE_TRAINING: "training",
    control_pb2.PHASE_FINISHING: "finishing",
    control_pb2.PHASE_SUCCEEDED: "succeeded",
    control_pb2.PHASE_FAILED: "failed",
    control_pb2.PHASE_STOPPED: "stopped",
}
_WORKER_PHASES: Final = {
    control_pb2.WORKER_PHASE_ABSENT: "not joined",
    control_pb2.WORKER_PHASE_JOINED: "joined",
    control_pb2.WORKER_PHASE_TRAINING: "training",
    control_pb2.WORKER_PHASE_FINISHED: "finished",
    control_pb2.WORKER_PHASE_LOST: "lost",
}


class Style(StrEnum):
    """How progress is shown."""

    LIVE = "live"
    PLAIN = "plain"
    QUIET = "quiet"


def make_console(file: IO[str] | None = None) -> Console:
    """What commands print with: text as it is, since names, errors and reasons may hold brackets, which rich would take
    for its markup.
    """
    return Console(file=file, markup=False, highlight=False)


def headline(state: control_pb2.JobState) -> str:
    """Return the job's key figures on one line."""
    if state.phase == control_pb2.PHASE_WAITING:
        joined = sum(
            worker.phase not in {control_pb2.WORKER_PHASE_ABSENT, control_pb2.WORKER_PHASE_UNSPECIFIED}
            for worker in state.workers
        )
        return f"waiting for workers: {joined} of {len(state.workers)} have joined"
    rounds = f"{state.version}/{state.rounds_planned}" if state.rounds_planned else str(state.version)
    parts = [f"{_PHASES.get(state.phase, 'starting')}: round {rounds}"]
    if state.epochs:
        parts.append(f"epoch {min(state.epoch + 1, state.epochs)}/{state.epochs}")
    parts.append(f"{state.samples_per_second:,.0f} samples/s")
    if state.ideal_samples_per_second > 0:
        parts.append(f"{state.samples_per_second / state.ideal_samples_per_second:.0%} of ideal")
    if state.synchronization.largest_staleness:
        parts.append(f"{state.synchronization.mode}: at most {state.synchronization.largest_staleness} versions stale")
    parts += [f"{name} {value:.4g}" for name, value in sorted(state.reported.items())]
    return ", ".join(parts)


def shares_line(state: control_pb2.JobState) -> str:
    """Return all shares on one line, and the plan they come from."""
    shares = " ".join(f"{worker.name}={share_text(state, worker)}" for worker in state.workers)
    return f"plan {state.plan.generation}: {shares}"


def share_text(state: control_pb2.JobState, worker: control_pb2.WorkerState) -> str:
    """Return a worker's share; both numbers while a new one is agreed and not yet in force."""
    now = share_in_force(state, worker)
    return str(now) if now == worker.share_wanted else f"{now}→{worker.share_wanted}"


def waiting_seconds(worker: control_pb2.WorkerState) -> float:
    """Return the part of a worker's step in which it does nothing of its own: mostly it waits for the slowest one."""
    own = worker.compute_seconds + worker.data_seconds + worker.push_seconds
    return max(0.0, worker.step_seconds - own - worker.receive_seconds - worker.other_seconds)


def worker_table(state: control_pb2.JobState) -> Table:
    """Return one row a worker."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker")
    for column in ("share", "samples/s", "step ms", "wait ms", "samples"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for worker in state.workers:
        table.add_row(
            worker.name, share_text(state, worker), f"{worker.samples_per_second:,.0f}",
            f"{worker.step_seconds * 1e3:,.1f}", f"{waiting_seconds(worker) * 1e3:,.1f}", f"{worker.samples:,}",
            _WORKER_PHASES.get(worker.phase, "") + (f": {worker.error}" if worker.error else ""),
        )  # fmt: skip
    return table


class Display(Protocol):
    """Takes what happens while a job runs. A context manager around the time in which states come."""

    def __enter__(self) -> Display:
        """Begin."""
        ...

    def __exit__(self, *_: object) -> None:
        """End; what is shown stays on the screen."""
        ...

    def say(self, line: str) -> None:
        """Show a line that stays."""
        ...

    def show(self, state: control_pb2.JobState, now: float) -> None:
        """Show the newest state. `now`: seconds, monotonic."""
        ...


class LiveDisplay:
    """A table that is drawn over and over."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Display:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Draw once more."""
        self._live.stop()

    def say(self, line: str) -> None:
        """Print above the table."""
        self._live.console.print(Text(line))

    def show(self, state: control_pb2.JobState, now: float) -> None:
        """Draw the state."""
        self._live.update(Group(Text(headline(state), style="bold"), worker_table(state)))


class PlainDisplay:
    """Lines, for a file or a pipe: when the phase, a reported value or the plan changes, else every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: tuple[object, ...] = ()
        self._last = 0.0

    def __enter__(self) -> Display:
        """Nothing to begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def say(self, line: str) -> None:
        """Print the line, whole, whatever the width."""
        self._console.print(Text(line), soft_wrap=True)

    def show(self, state: control_pb2.JobState, now: float) -> None:
        """Print the state if it is time."""
        key = (state.phase, state.plan.generation, tuple(sorted(state.reported.items())))
        since = now - self._last
        reported = key[2:] != self._shown[2:] and since >= REPORTED_INTERVAL_SECONDS
        if key[:2] != self._shown[:2] or reported or since >= PLAIN_INTERVAL_SECONDS:
            if self._shown[1:2] != key[1:2]:
                self.say(shares_line(state))
            self.say(headline(state))
            self._shown, self._last = key, now


class QuietDisplay:
    """Shows nothing: the result at the end and the exit code are enough."""

    def __enter__(self) -> Display:
        """Nothing to begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def say(self, line: str) -> None:
        """Pass it over."""

    def show(self, state: control_pb2.JobState, now: float) -> None:
        """Pass it over."""


def make_display(style: Style, console: Console) -> Display:
    """Return the display of that style."""
    match style:
        case Style.LIVE:
            return LiveDisplay(console)
        case Style.PLAIN:
            return PlainDisplay(console)
        case Style.QUIET:
            return QuietDisplay()
