"""What a training script sees: the `Session` that `heterotrain.join` returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from heterotrain.engine import Clip, Engine
from heterotrain.errors import UsageError
from heterotrain.evaluation import Evaluation, Measure, Number, finite_numbers
from heterotrain.loader import Loader, LoaderOptions, check_dataset
from heterotrain.memory import PeakWatch, probe_of
from heterotrain.optimizer import RoundOptimizer
from heterotrain.pace import Clocks, Pace
from heterotrain.preparation import Parameters, Weights, prepare_model
from heterotrain.randomness import SampleOrder
from heterotrain.rounds import Rounds, SampleLog
from heterotrain.schedule import Per, Schedule
from heterotrain.settings import Settings

ModelT = TypeVar("ModelT", bound=nn.Module)

_REPORT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


class Session:
    """A script's part in a job, or its run alone; made by `join`. Ends with the script, with `close` or with ``with``.

    Use it from one thread.
    """

    def __init__(self, engine: Engine, settings: Settings, device: torch.device, clocks: Clocks = Clocks()) -> None:  # noqa: B008 - frozen
        self._engine = engine
        self._settings = settings
        self._device = device
        self._clocks = clocks
        self._pace = Pace(settings.stretch, clocks, settle=_settle(device))
        self._model: nn.Module | None = None
        self._rounds: Rounds | None = None
        self._optimizer: RoundOptimizer | None = None
        self._closed = False
        self._when_closed: list[Callable[[], None]] = []

    @property
    def closed(self) -> bool:
        """The session is over."""
        return self._closed

    def on_close(self, action: Callable[[], None]) -> None:
        """Have `action` called when the session ends, before the job is told."""
        self._when_closed.append(action)

    @property
    def device(self) -> torch.device:
        """Where the model and the batches are."""
        return self._device

    @property
    def batch_size(self) -> int:
        """Samples of a round, of all workers together."""
        return self._engine.batch_size

    @property
    def seed(self) -> int:
        """The seed that all random numbers come from."""
        return self._engine.seed

    @property
    def rank(self) -> int:
        """Ordinal of this worker, from 0; 0 alone. For what only one worker should do, such as printing."""
        return self._engine.rank

    @property
    def num_workers(self) -> int:
        """Workers of the job; 1 alone."""
        return self._engine.num_workers

    @property
    def version(self) -> int:
        """Updates that the model's present parameters have seen."""
        return self._engine.version

    def prepare(
        self,
        model: ModelT,
        optimizer_class: type[torch.optim.Optimizer],
        dataset: Dataset[Any],
        *,
        parameters: Parameters | None = None,
        weights: Weights | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        timeout: float = 0,
        **hyperparameters: Any,
    ) -> tuple[ModelT, RoundOptimizer, Loader]:
        """Agree on model, optimizer and data with the other workers; returns what the loop uses, on `device`.

        `optimizer_class` is an elementwise one of `torch.optim`; `hyperparameters` are its keywords. `parameters`:
        parameters or parameter groups as for the class itself (default: all of the model). `weights`: a
        ``.safetensors`` file or a state dict to start from. `num_workers` to `timeout`: as for
        `torch.utils.data.DataLoader`.

        In a job the first worker's initial values (or weights) count for all; parameters with `requires_grad` off or in
        no group stay as they are; floating-point buffers follow the mean of the workers' changes, integer and Boolean
        ones the largest value; non-persistent buffers are each worker's own. The model must not be converted, moved or
        given other parameters afterwards. Raises `UsageError` for what cannot be trained so, with the remedy.
        """
        if self._model is not None:
            raise UsageError("session.prepare was called before; a session trains one model")
        dataset_size = check_dataset(dataset)
        setup = prepare_model(
            model, optimizer_class, dataset_size, self._device,
            parameters=parameters, weights=weights, hyperparameters=hyperparameters,
        )  # fmt: skip
        options = LoaderOptions(
            num_workers=num_workers, collate_fn=collate_fn, pin_memory=pin_memory, prefetch_factor=prefetch_factor,
            worker_init_fn=worker_init_fn, multiprocessing_context=multiprocessing_context, timeout=timeout,
        )  # fmt: skip
        gradients = self._engine.configure(setup)
        order = SampleOrder(self.seed, dataset_size)
        log = SampleLog(self._settings.sample_log, order)
        rounds = Rounds(
            self._engine,
            gradients,
            self._pace,
            log,
            least=setup.smallest_batch,
            memory=PeakWatch(probe_of(self._device)),
        )
        self._model, self._rounds = model, rounds
        self._optimizer = RoundOptimizer(setup.optimizer, rounds, alone=self._settings.job is None)
        loader = Loader(
            dataset, self._engine, rounds, order, options=options, device=self._device, clock=self._clocks.wall,
            least=setup.smallest_batch,
        )  # fmt: skip
        return model, self._optimizer, loader

    def schedule(self, scheduler: LRScheduler, per: Per = "samples") -> Schedule:
        """Have `scheduler`, made on the optimizer that `prepare` returned, follow the samples used, or the epochs.

        Call `step()` of what this returns after ``optimizer.step()``, or once per epoch after the loop over the loader.
        """
        rounds = self._prepared("session.schedule")
        if scheduler.optimizer is not self._optimizer:
            raise UsageError("scheduler: must be made on the optimizer that session.prepare returned")
        return Schedule(scheduler, rounds, per)

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs 0 … count - 1, fewer if the job is stopped. Can be used once.

        Within, the loop over the loader must run to its end: an epoch is over when all workers' samples are used.
        Leaving this loop early (``break``, ``return``) ends this script's part in the training.
        """
        rounds = self._prepared("session.epochs")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"epochs: must be a whole number of at least 1, not {count!r}")
        rounds.start(count)
        return self._run_epochs(rounds)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> None:
        """Clip the norm of the round's gradient of all workers together; call before ``optimizer.step()``.

        As `torch.nn.utils.clip_grad_norm_` on all parameters; the norm is known only on the parameter servers.
        """
        if not max_norm > 0:
            raise UsageError(f"max_norm: must be above 0, not {max_norm}")
        if not norm_type > 0:
            raise UsageError(f"norm_type: must be above 0 (math.inf for the largest element), not {norm_type}")
        self._prepared("session.clip_grad_norm_").clip(Clip(float(max_norm), float(norm_type)))

    @overload
    def evaluate(
        self,
        measure: Callable[..., Number],
        dataset: Dataset[Any],
        batch_size: int = 256,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> float: ...

    @overload
    def evaluate(
        self,
        measure: Callable[..., Mapping[str, Number]],
        dataset: Dataset[Any],
        batch_size: int = 256,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> dict[str, float]: ...

    def evaluate(
        self,
        measure: Measure,
        dataset: Dataset[Any],
        batch_size: int = 256,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> float | dict[str, float]:
        """Mean of `measure` over `dataset`, which is shared out among the workers; the same result on all of them.

        ``measure(model, *batch)`` gives a number, or a dict of numbers, *summed* over the batch; the sums of all are
        divided by the number of samples. In evaluation mode, without gradients. All workers must call it at the same
        places of the script.
        """
        if self._model is None:
            raise UsageError("call session.prepare before session.evaluate")
        check_dataset(dataset)
        if batch_size < 1:
            raise UsageError(f"batch_size: must be at least 1, not {batch_size}")
        work = Evaluation(measure, dataset, batch_size, collate_fn)
        return work.run(self._engine, self._model, self._device, self._pace)

    def report(self, **values: float | torch.Tensor) -> None:
        """Show finite numbers by name in the job's status; the newest of a name counts. Alone: only checked."""
        for name in values:
            if not _REPORT_NAME.fullmatch(name):
                raise UsageError(f"report: a name must be 1 to 63 ASCII letters, digits or _, not {name!r}")
        self._engine.report(finite_numbers(values))

    def close(self) -> None:
        """Leave the job: this script has no more work. Called by itself when the script ends; safe to call twice."""
        self._end(None)

    def fail(self, error: str) -> None:
        """Leave the job and fail it: `error` is shown as the reason. Called by itself for an uncaught exception."""
        self._end(error)

    def exhausted(self, error: str) -> bool:
        """Leave the job for want of memory, to come back and compute fewer samples at once; false: that cannot help.

        Called by itself for an uncaught exception that says so; if true, the script must begin anew.
        """
        samples = 0 if self._rounds is None else self._rounds.samples_at_hand
        if self._closed or samples < 2 or not self._engine.may_begin_anew:
            return False
        self._end(error, too_many=samples)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An error goes on to the interpreter's hook, which tells the job; closing here would say that all is well.
        if kind is None:
            self.close()

    def _end(self, failure: str | None, *, too_many: int = 0) -> None:
        if not self._closed:
            self._closed = True
            for action in self._when_closed:
                action()
            self._engine.close(failure, too_many=too_many)

    def _prepared(self, what: str) -> Rounds:
        if self._rounds is None:
            raise UsageError(f"call session.prepare before {what}")
        return self._rounds

    @staticmethod
    def _run_epochs(rounds: Rounds) -> Iterator[int]:
        try:
            while (epoch := rounds.enter_epoch()) is not None:
                yield epoch
                rounds.leave_epoch()
        finally:
            rounds.abandon()


def _settle(device: torch.device) -> Callable[[], None]:
    """Waits until `device` has done what it was given: calls on CUDA return before."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
