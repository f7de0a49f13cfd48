"""The wheel carries the program with its data, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.deploy import repository

RANKS = [f"proxy/tokens/ranks/{name}" for name in ("NOTICE", "cl100k_base.tiktoken", "o200k_base.tiktoken")]


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The paths inside a wheel built from this tree."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; `make setup` installs it")
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(build, cwd=repository.ROOT, check=True, capture_output=True)
    (wheel,) = target.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources(folder: str) -> set[str]:
    return {path.as_posix() for path in repository.files() if path.is_relative_to(folder)}


@pytest.mark.parametrize("package", ["proxy", "strategies"])
def test_every_file_of_a_package_is_in_it(carried: set[str], package: str) -> None:
    assert sources(package) - {"strategies/ruff.toml"} <= carried


def test_configuration_data_lies_where_an_installed_program_looks(carried: set[str]) -> None:
    assert {str(Path("proxy/_config") / Path(path).relative_to("config")) for path in sources("config")} <= carried


def test_the_token_rank_files_are_in_it_though_git_ignores_them(carried: set[str]) -> None:
    assert set(RANKS) <= carried


def test_tests_and_tools_are_not_in_it(carried: set[str]) -> None:
    assert {name.split("/")[0] for name in carried if ".dist-info/" not in name} == {"proxy", "strategies"}
