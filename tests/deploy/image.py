"""Carry out a Dockerfile's steps without a container engine.

Each stage is a folder, its base image a fresh virtual environment, and absolute paths in steps and variables
are moved into that folder. What only an engine gives (users, layers, namespaces) is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy import repository
from tests.deploy.dockerfile import Instruction, Stage, context_files

MOVED = re.compile(r"(?<![\w.-])/(?=(?:opt|data|build)(?:/|\b(?![.\w-])))")


class BuiltStage:
    """A stage while it is built, and the file system that it leaves."""

    def __init__(self, stage: Stage, root: Path, context: Path, earlier: dict[str, BuiltStage]) -> None:
        self.stage = stage
        self.root = root
        self.context = context
        self.earlier = earlier
        self.folder = root
        self.environment = outer_environment()
        base = root / "base"
        subprocess.run([sys.executable, "-m", "venv", base], check=True)
        self.environment["PATH"] = f"{base / 'bin'}{os.pathsep}{self.environment['PATH']}"
        for instruction in stage.instructions:
            self.step(instruction)

    def step(self, instruction: Instruction) -> None:
        match instruction.keyword:
            case "ENV":
                self.set_environment(instruction)
            case "WORKDIR":
                self.folder = self.inside(instruction.rest)
                self.folder.mkdir(parents=True, exist_ok=True)
            case "RUN":
                self.run(instruction)
            case "COPY":
                self.copy(instruction)
            case _:
                pass  # metadata: it takes effect where the image is started

    def inside(self, path: str) -> Path:
        return Path(self.moved(path)) if path.startswith("/") else self.folder / path

    def moved(self, text: str) -> str:
        """The text with the container's absolute paths turned into paths below this stage's folder."""
        return MOVED.sub(f"{self.root}/", text)

    def set_environment(self, instruction: Instruction) -> None:
        for pair in instruction.words():
            name, _, value = pair.partition("=")
            self.environment[name] = self.moved(value).replace("$PATH", self.environment["PATH"])

    def run(self, instruction: Instruction) -> None:
        command = self.moved(instruction.rest)
        if os.geteuid() != 0:
            command = re.sub(r" -[og] \d+", "", command)  # only root may give files away
        self.execute("sh", "-euc", command)

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this stage to its end; when it fails, what it printed is the error's text."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def copy(self, instruction: Instruction) -> None:
        *sources, target = instruction.words()
        origin = instruction.flags.get("from")
        for source in sources:
            if origin:
                self.copy_from_stage(self.earlier[origin], source, target)
            elif (self.context / source).is_dir():
                shutil.copytree(self.context / source, self.inside(target), dirs_exist_ok=True)
            else:
                self.inside(target).mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.context / source, self.inside(target))

    def copy_from_stage(self, origin: BuiltStage, source: str, target: str) -> None:
        """An environment's scripts name the folder it was made in; in a container that is the same one."""
        shutil.copytree(origin.inside(source), self.inside(target), symlinks=True)
        for script in self.inside(target).glob("bin/*"):
            if not script.is_symlink():
                script.write_text(script.read_text().replace(str(origin.root), str(self.root)))


def outer_environment() -> dict[str, str]:
    """This machine's environment, less what leads Python back to the source tree or sets the program up."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"} and not name.startswith("CONDENSER_")
    }


def write_context(target: Path) -> None:
    """The files that a `docker build` in the repository would send."""
    for path in context_files(repository.ROOT, repository.files()):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(repository.ROOT / path, target / path)


def build(found: list[Stage], workspace: Path) -> BuiltStage:
    """Build every stage in order. The last one is returned alone: the earlier ones are deleted."""
    context = workspace / "context"
    write_context(context)
    built: dict[str, BuiltStage] = {}
    for stage in found:
        root = workspace / stage.name
        root.mkdir()
        built[stage.name] = BuiltStage(stage, root, context, dict(built))
    for name in [stage.name for stage in found[:-1]]:
        shutil.rmtree(built[name].root)
    shutil.rmtree(context)
    return built[found[-1].name]
