"""Loads a byte-pair encoding from a bundled rank file, without network and cache directory.

tiktoken's own loader is avoided on purpose: it downloads without a time-out, deletes a cached file whose hash is wrong,
and writes into its cache directory. Split pattern and special tokens are published only through that loader, so both
are restated here; a test compares these encodings with tiktoken's own, so that an upgrade which changes either is
noticed. Loading takes about 0.4 s and leaves 48 MB for o200k_base; cl100k_base half of that.
"""

from __future__ import annotations

import hashlib
from binascii import a2b_base64
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tiktoken

RANKS_DIR = Path(__file__).parent / "ranks"
"""Where the build puts the rank files (deploy/fetch_ranks.py)."""

_ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


@dataclass(frozen=True, slots=True)
class Spec:
    """The parts of an encoding besides its ranks."""

    sha256: str
    pattern: str
    special: dict[str, int]


SPECS = {
    "cl100k_base": Spec(
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
            r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        ),
        special={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": Spec(
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern="|".join(
            (
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _ENDING,
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _ENDING,
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            )
        ),
        special={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
}


class RanksUnavailable(Exception):
    """A rank file is missing, unreadable or not the published one; the message says which and what to do."""


@cache
def load(name: str, directory: Path | None = None) -> tiktoken.Encoding:
    """Builds the encoding `name` from `<directory>/<name>.tiktoken`; the default is the bundled directory.

    Raises `RanksUnavailable`, and `KeyError` for an encoding that is not in SPECS. Blocks for up to 0.5 s, once:
    encodings are immutable and 45 MB large, so all apps of a process share one.
    """
    spec = SPECS[name]
    ranks = vocabulary(name, directory)
    encoding = tiktoken.Encoding(name, pat_str=spec.pattern, mergeable_ranks=ranks, special_tokens=spec.special)
    # The encoder has built its own table from the ranks; this copy is never read again, and takes 28 MB.
    encoding._mergeable_ranks = {}  # noqa: SLF001
    return encoding


def vocabulary(name: str, directory: Path | None = None) -> dict[bytes, int]:
    """The tokens of an encoding with their ranks, not cached; raises as `load` does."""
    contents = _read(name, directory or RANKS_DIR)
    if hashlib.sha256(contents).hexdigest() != SPECS[name].sha256:
        raise RanksUnavailable(f"{name}.tiktoken has other contents than the published file; {_REMEDY}")
    # Every line is `base64 rank`.
    pairs = (line.split() for line in contents.splitlines())
    return {a2b_base64(token): int(rank) for token, rank in pairs}


_REMEDY = (
    "install condenser-proxy again (in a checkout: `make ranks`), or point tokenizer.ranks_dir at a folder that has it"
)


def _read(name: str, directory: Path) -> bytes:
    try:
        return (directory / f"{name}.tiktoken").read_bytes()
    except OSError as error:
        raise RanksUnavailable(f"{directory}/{name}.tiktoken cannot be read: {error.strerror}; {_REMEDY}") from error
