"""The kustomize bases: valid by the published schemas, nothing named that is missing, and time enough to drain."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from proxy.cli import parse
from proxy.settings import Settings, load_settings
from tests.deploy import repository

BASES = ["sidecar", "standalone"]
# The first one with native sidecars and a sleep before the signal, and the newest that the tool knows.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]

Tree = dict[str, Any]


def folder(base: str) -> Path:
    return repository.ROOT / "deploy" / "kubernetes" / base


def objects(base: str) -> dict[str, Tree]:
    names = yaml.safe_load((folder(base) / "kustomization.yaml").read_text())["resources"]
    found = [yaml.safe_load((folder(base) / name).read_text()) for name in names]
    return {each["kind"]: each for each in found}


def pod(base: str) -> Tree:
    template: Tree = objects(base)["Deployment"]["spec"]["template"]["spec"]
    return template


def proxy_of(base: str) -> Tree:
    containers = [*pod(base).get("initContainers", []), *pod(base)["containers"]]
    container: Tree
    (container,) = [each for each in containers if each["name"] == "condenser"]
    return container


def settings(base: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("CONDENSER_CONFIG", str(folder(base) / "condenser.toml"))
    return load_settings()


@pytest.mark.parametrize("base", BASES)
def test_each_file_is_part_of_its_base_and_valid_by_the_published_schemas(base: str) -> None:
    kustomization = yaml.safe_load((folder(base) / "kustomization.yaml").read_text())
    (generated,) = kustomization["configMapGenerator"]
    listed = ["kustomization.yaml", *kustomization["resources"], *generated["files"]]
    assert sorted(listed) == sorted(path.name for path in folder(base).iterdir())
    for each in objects(base).values():
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("base", BASES)
def test_kustomize_builds_the_base(base: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    built = subprocess.run(["kubectl", "kustomize", folder(base)], check=True, capture_output=True, text=True)
    made = {each["kind"]: each for each in yaml.safe_load_all(built.stdout)}
    assert set(made) == {*objects(base), "ConfigMap"}
    (volume,) = [each for each in made["Deployment"]["spec"]["template"]["spec"]["volumes"] if "configMap" in each]
    assert volume["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
    kubernetes_validate.validate(made["ConfigMap"], VERSIONS[0], strict=True)


@pytest.mark.parametrize("base", BASES)
def test_the_proxy_starts_with_the_settings_and_few_rights(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container, loaded = proxy_of(base), settings(base, monkeypatch)
    parse(container["args"])
    assert container["env"] == [{"name": "CONDENSER_CONFIG", "value": "/etc/condenser/condenser.toml"}]
    assert container["envFrom"][0]["secretRef"]["name"] == "condenser"
    assert pod(base)["enableServiceLinks"] is pod(base)["automountServiceAccountToken"] is False
    rights = container["securityContext"]
    assert rights["runAsNonRoot"] is rights["readOnlyRootFilesystem"] is True
    assert (rights["capabilities"], rights["allowPrivilegeEscalation"]) == ({"drop": ["ALL"]}, False)
    volumes = {each["name"] for each in pod(base)["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    memory = {"1Gi": 2**30, "2Gi": 2**31}[container["resources"]["limits"]["memory"]]
    # As in docker-compose.yml: at rest, all bodies, and as much again.
    assert memory > 150 * 2**20 + 2 * loaded.limits.bodies
    assert 16 * loaded.limits.body <= loaded.limits.bodies


@pytest.mark.parametrize("base", BASES)
def test_the_drain_ends_within_the_grace_period(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drain, grace = settings(base, monkeypatch).drain, pod(base)["terminationGracePeriodSeconds"]
    before = max(
        each.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        for each in pod(base)["containers"]
    )
    assert before + drain.delay + drain.timeout < grace


def test_the_sidecar_is_for_its_pod_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, (app,) = proxy_of("sidecar"), pod("sidecar")["containers"]
    loaded = settings("sidecar", monkeypatch)
    assert proxy in pod("sidecar")["initContainers"]
    assert proxy["restartPolicy"] == "Always"
    assert loaded.host == "127.0.0.1"
    for probe in ("startupProbe", "livenessProbe"):  # the kubelet does not reach the loopback of a Pod
        program, *words = proxy[probe]["exec"]["command"]
        assert program == "condenser"
        parse(words)
    # Most images run as a user of their own, and write to their file system.
    assert "securityContext" not in app
    assert pod("sidecar")["securityContext"] == {"fsGroup": 10001}
    served = {each["name"]: each["value"] for each in app["env"]}
    assert served["OPENAI_BASE_URL"] == f"http://127.0.0.1:{loaded.port}/v1"
    assert served["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{loaded.port}"


def test_what_stands_around_the_replicas_means_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found, loaded = objects("standalone"), settings("standalone", monkeypatch)
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, key in (("Service", None), ("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        spec = found[kind]["spec"]
        assert (spec[key]["matchLabels"] if key else spec["selector"]) == labels
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "condenser"
    ports = {each["name"]: each["containerPort"] for each in proxy_of("standalone")["ports"]}
    assert (loaded.host, ports["http"]) == ("0.0.0.0", loaded.port)
    assert loaded.admin.listen == f"0.0.0.0:{ports['admin']}"
    assert [each["targetPort"] for each in found["Service"]["spec"]["ports"]] == ["http"]
    clients, prometheus = found["NetworkPolicy"]["spec"]["ingress"]
    assert (clients["ports"][0]["port"], prometheus["ports"][0]["port"]) == ("http", "admin")
    assert found["Service"]["metadata"]["name"] in loaded.server.hosts
    probes = {name: proxy_of("standalone")[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/livez",
        "readiness": "/readyz",
        "liveness": "/livez",
    }
