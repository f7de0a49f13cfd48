"""The compose file: nothing open to the network, no right that is not needed, no name that dangles."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tests.deploy import repository
from tests.deploy.dockerfile import stages

COMPOSE: dict[str, Any] = yaml.safe_load((repository.ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROXY, REDIS = SERVICES["proxy"], SERVICES["redis"]
DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


def test_the_two_services_are_the_proxy_and_its_store() -> None:
    assert set(SERVICES) == {"proxy", "redis"}
    assert PROXY["build"] == "."


def test_the_proxy_is_published_on_loopback_only_and_the_store_not_at_all() -> None:
    exposed = stages((repository.ROOT / "Dockerfile").read_text())[-1].last("EXPOSE").rest
    assert PROXY["ports"] == [f"127.0.0.1:{exposed}:{exposed}"]
    assert "ports" not in REDIS
    assert COMPOSE["networks"]["store"]["internal"] is True
    assert REDIS["networks"] == ["store"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_runs_with_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert not {"privileged", "cap_add", "pid", "network_mode", "env_file"} & set(service)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_a_health_check_and_time_to_stop(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert {"test", "interval", "timeout", "start_period", "retries"} == set(check)
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= 30


def test_the_proxy_is_asked_for_its_health_as_the_image_says() -> None:
    in_image = stages((repository.ROOT / "Dockerfile").read_text())[-1].last("HEALTHCHECK").words()
    assert PROXY["healthcheck"]["test"] == ["CMD", *in_image]


def test_the_proxy_waits_until_its_store_is_healthy() -> None:
    assert PROXY["depends_on"] == {"redis": {"condition": "service_healthy"}}


def test_the_store_keeps_its_data_over_a_restart_and_never_evicts() -> None:
    command = REDIS["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert REDIS["volumes"] == ["history:/data"]


def test_every_volume_and_network_that_is_named_is_declared() -> None:
    for service in SERVICES.values():
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        assert set(service["networks"]) <= set(COMPOSE["networks"])


def test_the_store_url_names_the_store_service() -> None:
    assert PROXY["environment"]["CONDENSER_STORE__URL"] == "redis://redis:6379/0"


def test_the_upstream_comes_from_the_environment_and_has_a_default() -> None:
    value = PROXY["environment"]["CONDENSER_UPSTREAM__BASE_URL"]
    assert value == "${CONDENSER_UPSTREAM__BASE_URL:-https://api.openai.com/v1}"


def test_the_proxys_environment_makes_valid_settings() -> None:
    from proxy.settings import Settings

    names = {**PROXY["environment"], **image_environment()}
    for name in names:
        assert is_setting(Settings, name.removeprefix("CONDENSER_").lower().split("__")), name


def image_environment() -> dict[str, str]:
    environment = stages((repository.ROOT / "Dockerfile").read_text())[-1].environment()
    return {name: value for name, value in environment.items() if name.startswith("CONDENSER_")}


def is_setting(model: type[BaseModel], path: list[str]) -> bool:
    """Whether the path leads from field to field down to a setting."""
    head, *rest = path
    field = model.model_fields.get(head)
    if field is None or not rest:
        return field is not None
    inner = field.annotation
    return isinstance(inner, type) and issubclass(inner, BaseModel) and is_setting(inner, rest)
