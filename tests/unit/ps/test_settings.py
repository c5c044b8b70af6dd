from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain.ps.settings import Settings, SettingsError, read_settings
from heterotrain_api.contract import Env, Port

ENVIRONMENT = {
    Env.JOB_NAME: "fashion",
    Env.JOB_UID: "6d0f3c1e",
    Env.NAME: "ps-1",
    Env.CERTIFICATES: "/certificates",
    Env.OUTPUT: "/output",
}
SETTINGS = Settings(
    job_name="fashion",
    job_uid="6d0f3c1e",
    name="ps-1",
    shard=1,
    credentials=Path("/certificates"),
    output=Path("/output"),
    host="0.0.0.0",
    control_port=Port.SHARD,
    tensor_port=Port.TENSOR,
    threads=None,
)


def test_a_pod_needs_its_environment_only() -> None:
    assert read_settings(ENVIRONMENT, []) == SETTINGS


def test_the_local_runner_chooses_addresses_and_threads() -> None:
    options = ["--host", "127.0.0.1", "--control-port", "0", "--tensor-port", "0", "--threads", "2"]
    settings = read_settings(ENVIRONMENT, options)
    assert (settings.host, settings.control_port, settings.tensor_port, settings.threads) == ("127.0.0.1", 0, 0, 2)


def test_only_shard_0_needs_a_folder_for_the_model() -> None:
    assert read_settings({**ENVIRONMENT, Env.OUTPUT: ""}, []).output is None


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (Env.NAME, "", "HETEROTRAIN_NAME must be set to the process's name, such as ps-0"),
        (Env.NAME, "cpu-0", "HETEROTRAIN_NAME must be ps-<index>, not 'cpu-0'"),
        (Env.JOB_UID, "", "HETEROTRAIN_JOB_UID must be set to the job's UID"),
        (Env.CERTIFICATES, "", "HETEROTRAIN_CERTIFICATES must be set to the folder with ca.crt, tls.crt and tls.key"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_by_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings({**ENVIRONMENT, variable: value}, [])


def test_metrics_are_served_where_the_environment_says() -> None:
    assert read_settings({**ENVIRONMENT, Env.METRICS: "0.0.0.0:7073"}, []).metrics == ("0.0.0.0", Port.METRICS)
    with pytest.raises(SettingsError, match="HETEROTRAIN_METRICS: an address must be host:port"):
        read_settings({**ENVIRONMENT, Env.METRICS: "everywhere"}, [])


def test_no_threads_cannot_compute() -> None:
    with pytest.raises(SettingsError, match="--threads must be at least 1, not 0"):
        read_settings(ENVIRONMENT, ["--threads", "0"])
