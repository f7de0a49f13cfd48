"""Loads a byte-pair encoding from a bundled rank file, without network and cache directory, and counts by it.

tiktoken's own loader is avoided on purpose: it downloads without a time-out, deletes a cached file whose hash is wrong,
and writes into its cache directory. Split pattern and special tokens are published only through that loader, so both
are restated here; a test compares these encodings with tiktoken's own, so that an upgrade which changes either is
noticed. Loading takes about 0.4 s and leaves 48 MB for o200k_base; cl100k_base half of that.

Two facts about tiktoken shape `count_in_chunks`. A run of about a million blanks overflows the regex stack and ends in
a `PanicException`, which derives from BaseException, so that `except Exception` lets it through. And what a client
sends may be of any length. So text is cut into pieces of 64k characters where both encodings split it anyway: before a
blank that precedes a letter, or between a newline and a letter. On real text the sum is exactly the count of the whole;
unbroken text (base64) may be off by one or two tokens for each cut. Beyond 2M characters evenly spaced pieces are
counted and the rest is extrapolated: the worst text costs about 2 s of CPU.

`estimate` counts without a vocabulary, for a deployment without rank files: parts of words, digits by three, runs of
signs, letters of other scripts. Tests check that it is within 30 % of the count for all kinds of text in them.
"""

from __future__ import annotations

import hashlib
import re
from binascii import a2b_base64
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tiktoken

_ABOUT_A_TOKEN = re.compile(
    r"[A-Z]?[a-z]{1,8}|[A-Z]{1,2}|[0-9]{1,3}|[!-/:-@\[-`{-~]{1,3}|\n+| {2,}"
    r"|[\u0080-\u07ff]{1,4}|[\u0800-\uffff]|[^\x00-\uffff]"
)


def estimate(text: str) -> int:
    """About the tokens that o200k_base makes of `text`: 0 for none, else 1 to its UTF-8 length."""
    return max(1, len(_ABOUT_A_TOKEN.findall(text))) if text else 0


RANKS_DIR = Path(__file__).parent / "ranks"  # where the build puts the rank files (deploy/fetch_ranks.py)

CHUNK_CHARS = 65_536
SEARCH_CHARS = 2_048  # how far back from the end of a chunk a harmless cut is looked for
SAMPLE_CHARS = 2_097_152  # above this many characters a text is sampled

_REMEDY = (
    "install condenser-proxy again (in a checkout: `make ranks`), or point tokenizer.ranks_dir at a folder that has it"
)
_CUT = re.compile(r"(?<=\S)(?= [^\W\d_])|(?<=\n)(?=[^\W\d_])")
_ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


class Spec(NamedTuple):
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
    _, pattern, special = SPECS[name]
    ranks = vocabulary(name, directory)
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    # The encoder has built its own table from the ranks; this copy is never read again, and takes 28 MB.
    encoding._mergeable_ranks = {}  # noqa: SLF001
    return encoding


def contents(name: str, directory: Path | None = None) -> bytes:
    """The contents of a rank file, which are the published ones; raises as `load` does."""
    path = (directory or RANKS_DIR) / f"{name}.tiktoken"
    try:
        read = path.read_bytes()
    except OSError as error:
        raise RanksUnavailable(f"{path} cannot be read: {error.strerror}; {_REMEDY}") from error
    if hashlib.sha256(read).hexdigest() != SPECS[name].sha256:
        raise RanksUnavailable(f"{path.name} has other contents than the published file; {_REMEDY}")
    return read


def vocabulary(name: str, directory: Path | None = None) -> dict[bytes, int]:
    """The tokens of an encoding with their ranks, not cached; raises as `load` does."""
    # Every line is `base64 rank`.
    pairs = (line.split() for line in contents(name, directory).splitlines())
    return {a2b_base64(token): int(rank) for token, rank in pairs}


def count_in_chunks(text: str, encode: Callable[[str], int]) -> int:
    """Tokens of a text by `encode`, or estimated if the tokenizer panics; exact up to SAMPLE_CHARS."""
    if len(text) > SAMPLE_CHARS:
        # Evenly spaced chunks, the beginning of the text included.
        pieces = SAMPLE_CHARS // CHUNK_CHARS
        stride = len(text) // pieces
        sample = "".join(text[at : at + CHUNK_CHARS] for at in range(0, stride * pieces, stride))
        return count_in_chunks(sample, encode) * len(text) // len(sample)
    if len(text) <= CHUNK_CHARS:
        return _guarded(text, encode)
    return sum(_guarded(chunk, encode) for chunk in chunks(text))


def chunks(text: str) -> Iterator[str]:
    """The text in order, in pieces of at most CHUNK_CHARS characters."""
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = _cut(text, start + CHUNK_CHARS)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(text: str, limit: int) -> int:
    """The last harmless cut at or shortly before `limit`, else `limit` itself."""
    places = (match.start() for match in _CUT.finditer(text, limit - SEARCH_CHARS, limit + 2))
    return max((place for place in places if place <= limit), default=limit)


def _guarded(chunk: str, encode: Callable[[str], int]) -> int:
    try:
        return encode(chunk)
    except BaseException as error:
        # pyo3's PanicException cannot be imported; interrupts and everything else are passed on.
        if type(error).__name__ != "PanicException":
            raise
        return estimate(chunk)
