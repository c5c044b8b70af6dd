from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain import UsageError
from heterotrain.settings import JobSettings, Settings, read_settings
from heterotrain_api.contract import Env

JOB = {
    Env.JOB_NAME: "fashion", Env.JOB_UID: "u1", Env.NAME: "cpu-0", Env.COORDINATOR: "ps-0:7070", Env.CERTIFICATES: "/c",
}  # fmt: skip
WANT_JOB = JobSettings(job_name="fashion", job_uid="u1", name="cpu-0", coordinator="ps-0:7070", certificates=Path("/c"))


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({}, Settings()),
        ({Env.DEVICE: "CUDA", Env.STRETCH: "1.5"}, Settings(device="CUDA", stretch=1.5)),
        ({Env.DEVICE: "CUDA", Env.CUDA_ORDINAL: "3"}, Settings(device="CUDA", cuda_ordinal=3)),
        (JOB, Settings(job=WANT_JOB, device="CPU")),
        (JOB | {Env.SAMPLE_LOG: "/log"}, Settings(job=WANT_JOB, device="CPU", sample_log=Path("/log"))),
        (JOB | {Env.METRICS: "[::1]:0"}, Settings(job=WANT_JOB, device="CPU", metrics=("::1", 0))),
        ({Env.NAME: "cpu-0"}, Settings()),
    ],
    ids=[
        "nothing: alone",
        "options alone",
        "the fourth on CUDA",
        "a job",
        "a job with a log",
        "a job with metrics",
        "a name without a job",
    ],
)
def test_the_environment_is_read(environ: dict[str, str], want: Settings) -> None:
    assert read_settings(environ) == want


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({Env.JOB_UID: "u1", Env.JOB_NAME: "j", Env.NAME: "w"}, f"{Env.COORDINATOR}, {Env.CERTIFICATES} are not"),
        ({Env.DEVICE: "TPU"}, f"{Env.DEVICE} must be CPU or CUDA, not 'TPU'"),
        ({Env.DEVICE: "cuda:7"}, f"{Env.DEVICE} must be CPU or CUDA, not 'cuda:7'"),
        ({Env.CUDA_ORDINAL: "-1"}, f"{Env.CUDA_ORDINAL} must be a whole number of at least 0, not '-1'"),
        ({Env.STRETCH: "0.5"}, f"{Env.STRETCH} must be a number of at least 1"),
        ({Env.STRETCH: "slow"}, f"{Env.STRETCH} must be a number of at least 1"),
        ({Env.STRETCH: "inf"}, f"{Env.STRETCH} must be a number of at least 1"),
        (JOB | {Env.METRICS: "9100"}, f"{Env.METRICS}: an address must be host:port or .*; unset it for no metrics"),
        ({Env.METRICS: "127.0.0.1:9100"}, f"{Env.METRICS} is set, but a script that runs alone has no metrics"),
    ],
)
def test_a_faulty_environment_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_settings(environ)
