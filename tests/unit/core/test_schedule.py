import pytest

from heterotrain_core.schedule import schedule_step


@pytest.mark.parametrize(
    ("epoch", "size", "batch", "committed", "want_step"),
    [
        pytest.param(0, 20, 8, 0, 0, id="nothing is committed"),
        pytest.param(0, 20, 8, 7, 0, id="less than one batch is no step"),
        pytest.param(0, 20, 8, 16, 2, id="two whole batches"),
        pytest.param(0, 20, 8, 19, 2, id="a started ragged round is no step"),
        pytest.param(0, 20, 8, 20, 3, id="the ragged round counts when the epoch is over"),
        pytest.param(1, 20, 8, 0, 3, id="the next epoch begins where the last one ended"),
        pytest.param(2, 16, 8, 8, 5, id="without a ragged round"),
        pytest.param(0, 3, 8, 3, 1, id="a dataset smaller than the batch"),
    ],
)
def test_the_step_counts_samples(epoch: int, size: int, batch: int, committed: int, want_step: int) -> None:
    assert schedule_step(epoch, size, batch, committed) == want_step


@pytest.mark.parametrize(
    ("arguments", "want_message"),
    [
        ((-1, 20, 8, 0), "epoch must be at least 0, not -1"),
        ((0, 0, 8, 0), "dataset_size must be at least 1, not 0"),
        ((0, 20, 0, 0), "batch must be at least 1, not 0"),
        ((0, 20, 8, 21), "committed_in_epoch must be between 0 and 20, not 21"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: tuple[int, int, int, int], want_message: str) -> None:
    with pytest.raises(ValueError, match=want_message):
        schedule_step(*arguments)
