"""What may be published: version, changelog and tag are of one mind. And what runs before: the CI file."""

import json
import subprocess
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import vendor

from deploy.release import HEADING, NotPublishable, release_of
from tests.deploy import repository

DATED, UNRELEASED = "2026-11-27", "unreleased"
Checkout = Callable[..., Path]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    def make(dated: str, *, version: str = "1.2.0", tag: str | None = None, later: bool = False) -> Path:
        (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{version}] - {dated}\n\n## [1.1.0] - 2026-01-01\n")
        commands = ["init -q", "add .", "commit -qm one", *([f"tag {tag}"] if tag else [])]
        commands += ["commit -qm two --allow-empty"] if later else []
        for words in commands:
            who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
            subprocess.run(["git", "-C", tmp_path, *who, *words.split()], check=True)
        return tmp_path

    return make


def test_an_unreleased_version_is_a_rehearsal_and_a_dated_one_with_its_tag_a_release(checkout: Checkout) -> None:
    assert release_of(checkout(UNRELEASED)) == ("1.2.0", False)
    assert release_of(checkout(DATED, tag="v1.2.0")) == ("1.2.0", True)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"dated": DATED, "version": "1.3.0"}, "CHANGELOG.md begins with 1.3.0"),
        ({"dated": "soon"}, "CHANGELOG.md begins with 1.1.0"),
        ({"dated": DATED}, "the tag v1.2.0 is not what is checked out"),
        ({"dated": DATED, "tag": "v1.2.0", "later": True}, "the tag v1.2.0 is not what is checked out"),
        ({"dated": UNRELEASED, "tag": "v1.2.0"}, "there is a tag v1.2.0"),
    ],
    ids=["another version", "no date", "no tag", "a commit after the tag", "a tag too early"],
)
def test_what_does_not_agree_is_not_published(checkout: Checkout, made: dict[str, str], said: str) -> None:
    with pytest.raises(NotPublishable, match=said):
        release_of(checkout(**made))


def test_a_changed_checkout_is_not_published(checkout: Checkout) -> None:
    root = checkout(DATED, tag="v1.2.0")
    (root / "new.py").touch()
    with pytest.raises(NotPublishable, match=r"new\.py"):
        release_of(root)


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    version = tomllib.loads((repository.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert HEADING.findall((repository.ROOT / "CHANGELOG.md").read_text())[0][0] == version


def test_ci_runs_the_two_commands_that_newcomers_are_told() -> None:
    workflow = yaml.safe_load((repository.ROOT / ".github" / "workflows" / "ci.yml").read_text())
    schema = json.loads(resources.files(vendor).joinpath("github-workflows.json").read_text())
    workflow["on"] = workflow.pop(True)  # YAML 1.1 reads the key so; GitHub does not
    jsonschema.Draft7Validator(schema).validate(workflow)
    ran = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    assert ran == ["make demo", "make test"]
    for command, document in zip(ran, ("README.md", "CONTRIBUTING.md"), strict=True):
        assert command in (repository.ROOT / document).read_text()
