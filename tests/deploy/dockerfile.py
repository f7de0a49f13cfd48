"""What a Dockerfile says, as data, and which files its build context holds.

Only as much of the language as ours uses; an unknown instruction is an error, not a guess.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KNOWN = frozenset(
    "FROM ENV LABEL WORKDIR COPY RUN USER VOLUME EXPOSE HEALTHCHECK ENTRYPOINT CMD".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Instruction:
    keyword: str
    flags: dict[str, str]
    rest: str

    def words(self) -> list[str]:
        """The arguments: of the exec form where it is one, else split as a shell splits them."""
        if self.rest.startswith("["):
            return [str(word) for word in json.loads(self.rest)]
        return shlex.split(self.rest)

    def is_exec_form(self) -> bool:
        return self.rest.startswith("[")


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def every(self, keyword: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.keyword == keyword]

    def last(self, keyword: str) -> Instruction:
        return self.every(keyword)[-1]

    def environment(self) -> dict[str, str]:
        return self.pairs("ENV")

    def pairs(self, keyword: str) -> dict[str, str]:
        """What all instructions of one kind say as NAME=value."""
        pairs = (pair.partition("=") for line in self.every(keyword) for pair in line.words())
        return {name: value for name, _, value in pairs}


def arguments(text: str) -> dict[str, str]:
    """The build arguments with their defaults: only those before all stages, which no image holds."""
    head = text.partition("\nFROM ")[0]
    return dict(re.findall(r"^ARG (\w+)=(\S+)$", head, re.MULTILINE))


def stages(text: str) -> list[Stage]:
    """The stages, with the defaults of the build arguments."""
    found: list[Stage] = []
    given = arguments(text)
    text = re.sub(r"\$\{(\w+)\}", lambda name: given[name[1]], text[text.index("\nFROM ") :])
    for instruction in map(parse, logical_lines(text)):
        if instruction.keyword == "FROM":
            base, _, name = re.split(r"\s+(AS)\s+", instruction.rest, flags=re.IGNORECASE)
            found.append(Stage(name, base, ()))
        else:
            stage = found.pop()
            found.append(Stage(stage.name, stage.base, (*stage.instructions, instruction)))
    return found


def logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, the continued ones joined."""
    kept = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    yield from re.sub(r"\\\n\s*", "", "\n".join(kept)).splitlines()


def parse(line: str) -> Instruction:
    keyword, _, rest = line.strip().partition(" ")
    if keyword not in KNOWN:
        raise ValueError(f"the parser does not know {keyword}")
    flags: dict[str, str] = {}
    while found := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
        flags[found[1]] = found[2]
        rest = rest[found.end() :]
    if keyword == "HEALTHCHECK":
        rest = rest.removeprefix("CMD ")
    return Instruction(keyword, flags, rest.strip())


def context_files(root: Path, candidates: Iterator[Path]) -> list[Path]:
    """Those candidates, relative to `root`, that .dockerignore lets into the build context."""
    rules = [rule(line) for line in logical_lines((root / ".dockerignore").read_text())]
    return [path for path in candidates if not is_ignored(path, rules)]


def is_ignored(path: Path, rules: list[tuple[bool, re.Pattern[str]]]) -> bool:
    """The last rule that names the path, or a folder it lies in, decides."""
    names = [path.as_posix(), *(parent.as_posix() for parent in path.parents)]
    verdicts = [ignored for ignored, pattern in rules if any(pattern.fullmatch(name) for name in names)]
    return bool(verdicts) and verdicts[-1]


def rule(line: str) -> tuple[bool, re.Pattern[str]]:
    pattern = re.escape(line.removeprefix("!").strip("/"))
    pattern = pattern.replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return not line.startswith("!"), re.compile(pattern)
