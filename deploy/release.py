"""Build what is published, into dist/: the wheel, the source archive and the list of their parts (CycloneDX).

    make release

The wheel is checked in an environment of its own, outside of the checkout. While the changelog calls the version
unreleased this is a rehearsal, in which an audit that cannot be made is only said. Exits with 1 and the reason where
version, tag and changelog do not agree, or where a step fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = "dist"
UNREACHABLE = 2  # deploy/audit.sh: the service could not be asked
HEADING = re.compile(r"^## \[([^\]]+)\] - (unreleased|\d{4}-\d{2}-\d{2})$", re.MULTILINE)


class NotPublishable(Exception):
    """Nothing can be published; the text says why."""


def release_of(root: Path) -> tuple[str, bool]:
    """The version, and whether this is its release: the changelog has its date, and its tag is what is checked out.

    Raises `NotPublishable`.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    newest = HEADING.search((root / "CHANGELOG.md").read_text())
    dated = newest[1] if newest else "no version"
    if newest is None or dated != version:
        raise NotPublishable(f"pyproject.toml says {version}, and CHANGELOG.md begins with {dated}")
    tag = f"v{version}"
    tagged = git(root, "rev-list", "-n", "1", tag) if git(root, "tag", "--list", tag) else None
    if newest[2] == "unreleased":
        if tagged:
            raise NotPublishable(f"CHANGELOG.md calls {version} unreleased, and there is a tag {tag}")
        return version, False
    if tagged != git(root, "rev-parse", "HEAD"):
        raise NotPublishable(f"CHANGELOG.md dates {version}, and the tag {tag} is not what is checked out")
    if changed := git(root, "status", "--porcelain"):
        raise NotPublishable(f"what is checked out is not {tag}:\n{changed}")
    return version, True


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout.strip()


def build() -> Path:
    """The wheel, beside its source archive; `twine` has read what the index will show."""
    shutil.rmtree(ROOT / DIST, ignore_errors=True)
    # The tools are locked in this environment: a build of its own would fetch whatever is newest.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ".", quiet=True)
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, (ROOT / DIST).iterdir()))
    (wheel,) = (ROOT / DIST).glob("*.whl")
    return wheel


def check(wheel: Path, version: str, folder: Path) -> None:
    """Installs the wheel in an environment of its own, runs it there, and lists what is in it."""
    environment, home = folder / "environment", folder / "home"
    home.mkdir()
    python, condenser = environment / "bin" / "python", environment / "bin" / "condenser"
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    install = [sys.executable, "-m", "pip", "-qq", "--python", str(python), "--disable-pip-version-check", "install"]
    run(*install, "--require-hashes", "-r", "requirements/base.txt")
    run(*install, "--no-deps", "--no-index", str(wheel))
    clean = {"PATH": os.defpath, "HOME": str(home)}
    said = subprocess.run([condenser, "--version"], cwd=home, env=clean, check=True, capture_output=True, text=True)
    if said.stdout != f"condenser {version}\n":
        raise NotPublishable(f"the wheel calls itself {said.stdout.strip()}, not {version}")
    for words in (["check", "--offline", "--store", "memory://", "--model", "gpt-4o"], ["demo"]):
        subprocess.run([condenser, *words], cwd=home, env=clean, check=True, stdout=subprocess.DEVNULL)
    parts = f"{DIST}/condenser_proxy-{version}.cdx.json"
    listing = ["environment", "--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible"]
    run(sys.executable, "-m", "cyclonedx_py", *listing, "--output-file", parts, str(python))


def audit(tool: str, is_release: bool) -> str:
    """What the audit of the locked packages means; raises where it finds one, and where a release cannot be audited."""
    locks = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "requirements").glob("*.txt"))]
    code = subprocess.run(["sh", "deploy/audit.sh", tool, *locks], cwd=ROOT, check=False).returncode
    if code == 0:
        return "audited: no locked package has a known vulnerability"
    if code == UNREACHABLE and not is_release:
        return "NOT AUDITED: the vulnerability service could not be asked; a release would have failed"
    raise NotPublishable("the audit failed, as said above")


def run(*command: str, quiet: bool = False) -> None:
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL if quiet else None)


def main(auditor: str) -> int:
    try:
        version, is_release = release_of(ROOT)
        wheel = build()
        with tempfile.TemporaryDirectory() as folder:
            check(wheel, version, Path(folder))
        audited = audit(auditor, is_release)
    except NotPublishable as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"release: {' '.join(map(str, error.cmd))}: exit status {error.returncode}", file=sys.stderr)
        return 1
    print(*sorted(path.name for path in (ROOT / DIST).iterdir()), audited, sep="\n")
    print(f"{version} can be published" if is_release else f"a rehearsal of {version}, which is unreleased")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
