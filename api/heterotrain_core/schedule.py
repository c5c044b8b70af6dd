"""Learning-rate schedules count samples, not updates, so that all synchronisation modes are comparable (design §4)."""

from __future__ import annotations


def schedule_step(epoch: int, dataset_size: int, batch: int, committed_in_epoch: int) -> int:
    """Step at which a schedule stands: ``epoch x ceil(n/B) + floor(samples committed in the epoch / B)``.

    `epoch` counts from 0, everything else is in samples. An epoch that is over counts its ragged last round too, so
    that its end and the next epoch's beginning are one step, and under BSP without losses the step is the version.
    Raises `ValueError` if an argument is out of range.
    """
    if epoch < 0:
        raise ValueError(f"epoch must be at least 0, not {epoch}")
    if dataset_size < 1:
        raise ValueError(f"dataset_size must be at least 1, not {dataset_size}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    if not 0 <= committed_in_epoch <= dataset_size:
        raise ValueError(f"committed_in_epoch must be between 0 and {dataset_size}, not {committed_in_epoch}")
    steps_per_epoch = -(-dataset_size // batch)
    if committed_in_epoch == dataset_size:
        return (epoch + 1) * steps_per_epoch
    return epoch * steps_per_epoch + committed_in_epoch // batch
