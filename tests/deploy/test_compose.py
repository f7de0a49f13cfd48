"""The compose file: nothing open to the network, no right that is not needed, no name that dangles."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import vendor
from pydantic import BaseModel

from tests.deploy import repository
from tests.deploy.dockerfile import arguments, stages
from tests.support.ports import free_port
from tests.support.processes import end

COMPOSE: dict[str, Any] = yaml.safe_load((repository.ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROXY, REDIS = SERVICES["proxy"], SERVICES["redis"]
DOCKERFILE = (repository.ROOT / "Dockerfile").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)\}")


def test_only_the_proxy_is_published_on_loopback_and_waits_for_its_store() -> None:
    image = stages(DOCKERFILE)[-1]
    exposed = image.last("EXPOSE").rest
    assert {name for name, each in SERVICES.items() if "profiles" not in each} == {"proxy", "redis"}
    assert PROXY["build"]["context"] == "."
    assert PROXY["ports"] == [f"127.0.0.1:{exposed}:{exposed}"]
    assert "ports" not in REDIS
    assert COMPOSE["networks"]["store"]["internal"] is True
    assert REDIS["networks"] == ["store"]
    assert PROXY["healthcheck"]["test"] == ["CMD", *image.last("HEALTHCHECK").words()]
    assert PROXY["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert PROXY["extra_hosts"] == ["host.docker.internal:host-gateway"]  # a model server on this machine
    assert PROXY["environment"]["CONDENSER_UPSTREAM__BASE_URL"] is None  # one for each protocol, if it is not set


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_few_rights_a_health_check_and_time_to_stop(name: str) -> None:
    service = SERVICES[name]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert (service["read_only"], service["tmpfs"]) == (True, ["/tmp"])
    assert not {"privileged", "cap_add", "pid", "network_mode"} & set(service)
    assert {"mem_limit", "pids_limit"} <= set(service)
    assert {"test", "interval", "timeout", "start_period", "retries"} == set(service["healthcheck"])
    assert int(service["stop_grace_period"].removesuffix("s")) >= 30
    named = {volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith("./")}
    assert named <= set(COMPOSE["volumes"])
    assert set(service["networks"]) <= set(COMPOSE["networks"])


def test_the_store_keeps_its_data_evicts_nothing_and_has_room_for_twice_of_it() -> None:
    command = interpolated(REDIS["command"])
    for option, value in (("--appendonly", "yes"), ("--maxmemory-policy", "noeviction"), ("--maxmemory", "512mb")):
        assert command[command.index(option) + 1] == value
    assert REDIS["volumes"] == ["history:/data"]
    assert interpolated([REDIS["mem_limit"]]) == ["1g"]


def test_the_store_url_names_the_store_service_with_its_password() -> None:
    (url,) = interpolated([PROXY["environment"]["CONDENSER_STORE__URL"]], REDIS_PASSWORD="p1")
    assert url == "redis://:p1@redis:6379/0"
    command = interpolated(REDIS["command"], REDIS_PASSWORD="p1")
    assert command[command.index("--requirepass") + 1] == "p1"
    assert interpolated(list(REDIS["environment"].values()), REDIS_PASSWORD="p1") == ["p1"]


def test_no_password_has_a_default() -> None:
    text = (repository.ROOT / "docker-compose.yml").read_text()
    assert text.count("${REDIS_PASSWORD") == text.count("${REDIS_PASSWORD:?") == 3


IMAGES = [service["image"] for service in SERVICES.values() if "build" not in service]


@pytest.mark.parametrize("tag", [*IMAGES, *(stage.base for stage in stages(DOCKERFILE))])
def test_an_image_is_named_by_an_exact_version_that_a_digest_can_replace(tag: str) -> None:
    if tag in IMAGES:
        assert VARIABLE.fullmatch(tag)
        (tag,) = interpolated([tag])
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(-[a-z-]+)?", tag)


def test_the_build_takes_the_base_that_the_dockerfile_names() -> None:
    assert dict(zip(PROXY["build"]["args"], interpolated(list(PROXY["build"]["args"].values())), strict=True)) == (
        arguments(DOCKERFILE)
    )


def test_the_file_is_valid_by_the_published_schema() -> None:
    schema = json.loads(resources.files(vendor).joinpath("compose-spec.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(COMPOSE)


def test_the_local_model_keeps_its_models_and_is_reached_by_the_proxy() -> None:
    model = SERVICES["model"]
    assert model["profiles"] == ["model"]
    assert set(model["networks"]) & set(PROXY["networks"])
    assert "ports" not in model
    assert model["volumes"] == ["models:/root/.ollama"]


def test_monitoring_scrapes_the_proxy_and_grafana_finds_its_source_and_dashboard() -> None:
    prometheus, grafana, deploy = SERVICES["prometheus"], SERVICES["grafana"], repository.ROOT / "deploy"
    assert prometheus["profiles"] == grafana["profiles"] == ["monitoring"]
    assert "ports" not in prometheus
    assert all(port.startswith("127.0.0.1:") for port in grafana["ports"])
    (job,) = yaml.safe_load((deploy / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    exposed = stages(DOCKERFILE)[-1].last("EXPOSE").rest
    assert job["dns_sd_configs"] == [{"names": ["proxy"], "type": "A", "port": int(exposed)}]
    assert prometheus["networks"] == grafana["networks"] == ["outside"]
    mounted = dict(volume.split(":")[:2] for volume in (*grafana["volumes"], *prometheus["volumes"]))
    assert all((repository.ROOT / source).exists() for source in mounted if source.startswith("./"))
    provisioning = deploy / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "condenser.yml").read_text())["providers"]
    assert mounted["./deploy/grafana/condenser.json"].rpartition("/")[0] == provider["options"]["path"]


@pytest.mark.parametrize(
    "name",
    ["UPSTREAM__API_KEY", "TENANT__PEPPER", "ADMIN__TOKEN", "WINDOW", "STRATEGY", "LOG__FORMAT", "SERVER__HOSTS"],
)
def test_secrets_and_usual_settings_are_passed_on_and_never_empty(name: str) -> None:
    """A name without a value is passed on where it is set; `${NAME:-}` would pass an empty one, which is refused."""
    assert PROXY["environment"][f"CONDENSER_{name}"] is None
    assert PROXY["env_file"] == [{"path": "condenser.env", "required": False}]


def test_files_of_secrets_are_taken_by_neither_git_nor_image() -> None:
    assert "./secrets:/run/secrets:ro" in PROXY["volumes"]
    ignored = (repository.ROOT / ".gitignore").read_text().split()
    assert {"/secrets/", "/condenser.env", "/.env"} <= set(ignored)


def test_the_proxys_environment_makes_valid_settings() -> None:
    from proxy.settings import Settings

    names = {**PROXY["environment"], **image_environment()}
    for name in names:
        path = name.removeprefix("CONDENSER_").removesuffix("_FILE").lower().split("__")
        assert is_setting(Settings, path), name


KEYED = {"CONDENSER_UPSTREAM__API_KEY": "sk-operator", "CONDENSER_UPSTREAM__BASE_URL": "http://127.0.0.1:9/v1"}


@pytest.mark.parametrize("key", [{}, KEYED], ids=["callers' keys", "own key"])
def test_the_stack_starts_and_is_healthy_on_whatever_port_it_serves(key: dict[str, str], tmp_path: Path) -> None:
    """The commands of both services run here, with the environment that Compose would give them."""
    image, store = stages((repository.ROOT / "Dockerfile").read_text())[-1], free_port()
    set_here = dict(zip(PROXY["environment"], interpolated(list(PROXY["environment"].values())), strict=True))
    environment = {name: value for name, value in {**set_here, **key}.items() if value is not None}
    environment["CONDENSER_STORE__URL"] = environment["CONDENSER_STORE__URL"].replace(
        "redis:6379", f"127.0.0.1:{store}"
    )
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    redis = [*interpolated(REDIS["command"]), "--port", str(store), "--dir", str(tmp_path)]
    serve = [*image.last("ENTRYPOINT").words(), *image.last("CMD").words(), "--port", str(free_port())]
    with running(redis, environment) as log:
        assert any("Ready to accept connections" in line for line in log)
        with running(serve, environment) as output:
            assert output.readline().startswith("condenser listens on ")
            subprocess.run(PROXY["healthcheck"]["test"][1:], env=environment, check=True)
            told = subprocess.check_output(["condenser", "status"], env=environment, text=True)
    assert re.search(rf"Sessions are kept in redis://\S+:{store}/0, which works\.", told), told  # by its note


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[IO[str]]:
    """The output of a command that runs."""
    if shutil.which(command[0], path=environment["PATH"]) is None:
        pytest.skip(f"no {command[0]} here")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            end(process)


def interpolated(values: list[Any], **given: str) -> list[Any]:
    """The values as Compose fills them in; None is a variable that is passed on if it is set."""
    return [
        None if value is None else VARIABLE.sub(lambda found: given.get(found[1], found[2] or "p0"), str(value))
        for value in values
    ]


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
