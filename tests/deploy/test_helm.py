"""The Helm chart: what it renders is what the kustomize bases build, and its version is the program's."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from proxy import VERSION
from tests.deploy import repository
from tests.deploy.test_kubernetes import BASES, VERSIONS, folder, objects

CHART = repository.ROOT / "deploy" / "helm"
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="no helm here")
Tree = dict[str, Any]


def rendered(*options: str) -> dict[str, Tree]:
    """The objects of the chart by their kind, each valid by the published schemas."""
    command = ["helm", "template", "condenser", str(CHART), "--kube-version", "1.30.0", *options]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {each["kind"]: each for each in yaml.safe_load_all(made)}
    for each in found.values():
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
    return found


def test_the_chart_has_the_version_of_the_program_and_the_bases_themselves() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    assert {base: (CHART / base).resolve() for base in BASES} == {base: folder(base) for base in BASES}


@needs_helm
def test_the_chart_passes_its_linter_and_packs_what_it_links_to(tmp_path: Path) -> None:
    subprocess.run(["helm", "lint", "--strict", str(CHART)], check=True, capture_output=True)
    subprocess.run(["helm", "package", str(CHART), "--destination", str(tmp_path)], check=True, capture_output=True)
    (packed,) = tmp_path.iterdir()
    shown = subprocess.run(
        ["helm", "template", str(packed), "--kube-version", "1.30.0"], capture_output=True, check=True
    )
    assert b"kind: HorizontalPodAutoscaler" in shown.stdout


@needs_helm
@pytest.mark.parametrize("base", BASES)
def test_it_renders_the_objects_of_a_base(base: str) -> None:
    found, bases = rendered("--set", f"mode={base},application.image=app"), objects(base)
    settings = found.pop("ConfigMap")
    assert settings["data"]["condenser.toml"].strip() == (folder(base) / "condenser.toml").read_text("utf-8").strip()
    template = found["Deployment"]["spec"]["template"]
    assert set(template["metadata"].pop("annotations")) == {"checksum/settings"}
    for each in template["spec"].get("initContainers", []) + template["spec"]["containers"]:
        each["image"] = each["image"].removesuffix(f":{VERSION}")
    assert {kind: each["spec"] for kind, each in found.items()} == {kind: each["spec"] for kind, each in bases.items()}
    assert {each["metadata"]["labels"]["app.kubernetes.io/part-of"] for each in found.values()} == {"condenser"}


@needs_helm
def test_values_change_what_they_name_and_nothing_else() -> None:
    values = ["image.repository=r.example/c", "image.digest=sha256:0a", "secret=mine", "settings=window = 8192"]
    values += ["over.HorizontalPodAutoscaler.spec.maxReplicas=20", "without={NetworkPolicy}"]
    before = rendered()
    changed = rendered(*(word for value in values for word in ("--set", value)))
    (container,) = changed["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "r.example/c@sha256:0a"
    assert container["envFrom"] == [{"secretRef": {"name": "mine"}}]
    assert changed["HorizontalPodAutoscaler"]["spec"].pop("maxReplicas") == 20
    before["HorizontalPodAutoscaler"]["spec"].pop("maxReplicas")
    assert changed["HorizontalPodAutoscaler"] == before["HorizontalPodAutoscaler"]
    assert changed["ConfigMap"]["data"] == {"condenser.toml": "window = 8192\n"}
    assert set(before) - set(changed) == {"NetworkPolicy"}
    hashes = [each["Deployment"]["spec"]["template"]["metadata"]["annotations"] for each in (before, changed)]
    assert hashes[0] != hashes[1]
