"""Settings are read once, and what cannot be taken is said with its name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.settings import InfoSettings, OperatorSettings, SettingsError, read_settings, variable

IMAGE = {"HETEROTRAIN_OPERATOR_TRAINER_IMAGE": "trainer:1"}


def test_defaults() -> None:
    assert read_settings(IMAGE) == (OperatorSettings(), JobSettings(trainer_image="trainer:1"), InfoSettings())


def test_every_field_can_be_read() -> None:
    texts = {"str": "x", "int": "7", "int | None": "7", "float": "7.5", "Mapping[str, str]": '{"cpu": "1"}'}
    values = {"str": "x", "int": 7, "int | None": 7, "float": 7.5, "Mapping[str, str]": {"cpu": "1"}}
    own = [field for field in fields(OperatorSettings) if field.name != "namespaces"]
    env = {variable(field): texts[str(field.type)] for field in (*own, *fields(JobSettings))}
    shell, job, _ = read_settings(env | {"KOPF_RUN_NAMESPACES": "one two"})
    assert shell == OperatorSettings(
        namespaces=("one", "two"),
        **{field.name: values[str(field.type)] for field in own},  # type: ignore[arg-type]
    )
    assert job == JobSettings(**{field.name: values[str(field.type)] for field in fields(JobSettings)})  # type: ignore[arg-type]


def test_every_field_of_the_information_service_can_be_read() -> None:
    given: dict[str, tuple[str, object]] = {
        "rules_namespace": ("system", "system"),
        "rule_packs": ("trainer dcgm", ("trainer", "dcgm")),
        "without_rules": ("node-steal", ("node-steal",)),
        "prometheus_url": ("https://prometheus.monitoring", "https://prometheus.monitoring"),
        "prometheus_credentials": ("prometheus", "prometheus"),
        "allowed_hosts": ("*.svc n1", ("*.svc", "n1")),
        "credentials_folder": ("/credentials", "/credentials"),
        "history_file": ("/data/history.sqlite", "/data/history.sqlite"),
        "retention_seconds": ("7200", 7200.0),
        "samples_per_series": ("10", 10),
        "stored_series": ("100", 100),
        "exported_series": ("20", 20),
        "rest_port": ("8082", 8082),
        "rest_certificates": ("/tls", "/tls"),
    }
    assert given.keys() == {field.name for field in fields(InfoSettings)}
    env = {variable(field): given[field.name][0] for field in fields(InfoSettings)}
    _, _, info = read_settings(IMAGE | env)
    assert {field.name: getattr(info, field.name) for field in fields(InfoSettings)} == {
        name: value for name, (_, value) in given.items()
    }


def test_an_empty_text_means_none_where_none_is_allowed() -> None:
    assert read_settings(IMAGE | {"HETEROTRAIN_OPERATOR_RUN_AS_USER": ""})[1].run_as_user is None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        pytest.param({}, "TRAINER_IMAGE must be set", id="no image"),
        pytest.param(IMAGE | {"HETEROTRAIN_OPERATOR_FULLPASS": "1"}, "FULLPASS is not a setting; there are", id="typo"),
        pytest.param(IMAGE | {"HETEROTRAIN_OPERATOR_FULL_PASS_SECONDS": "0"}, "must be above 0, not 0", id="zero"),
        pytest.param(IMAGE | {"HETEROTRAIN_OPERATOR_FULL_PASS_SECONDS": "a"}, "must be a number, not 'a'", id="word"),
        pytest.param(IMAGE | {"HETEROTRAIN_OPERATOR_CONCURRENT_PASSES": "1.5"}, "must be a whole number", id="half"),
        pytest.param(IMAGE | {"HETEROTRAIN_OPERATOR_METRICS_PORT": "70000"}, "must be a port or 0", id="no port"),
        pytest.param(IMAGE | {"HETEROTRAIN_OPERATOR_REST_PORT": "-1"}, "REST_PORT must be a port or 0", id="no REST"),
        pytest.param(
            IMAGE | {"HETEROTRAIN_OPERATOR_RULE_PACKS": "trainer gpus"},
            "RULE_PACKS: there is no pack 'gpus'; there are cadvisor",
            id="no such pack",
        ),
        pytest.param(
            IMAGE | {"HETEROTRAIN_OPERATOR_PROMETHEUS_URL": "prometheus:9090"},
            "PROMETHEUS_URL must begin with http:// or https://",
            id="an address without scheme",
        ),
        pytest.param(
            IMAGE | {"HETEROTRAIN_OPERATOR_RETENTION_SECONDS": "0"}, "RETENTION_SECONDS must be above 0", id="no past"
        ),
        pytest.param(
            IMAGE | {"HETEROTRAIN_OPERATOR_COORDINATOR_LIMITS": "cpu=1"}, "must be a JSON object", id="no JSON"
        ),
    ],
)
def test_what_cannot_be_taken(env: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_settings(env)
