"""The image: what its Dockerfile promises and, as `torture`, what its steps make when carried out."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from time import monotonic

import pytest

from tests.deploy import image, repository
from tests.deploy.dockerfile import Instruction, Stage, context_files, stages
from tests.support.ports import free_port

TEXT = (repository.ROOT / "Dockerfile").read_text()
STAGES = stages(TEXT)
BUILDER, RUNTIME = STAGES
COPIES = [step for stage in STAGES for step in stage.every("COPY")]
SECRET = re.compile(r"(?i)(api_?key|token|secret|passw)\w*[=: ]\s*\S")
START_SECONDS = 20


def test_a_slim_runtime_carries_only_the_environment_that_a_builder_makes() -> None:
    assert [stage.name for stage in STAGES] == ["builder", "runtime"]
    assert {stage.base for stage in STAGES} == {"python:3.12.12-slim-trixie"}
    assert [(step.flags, step.words()) for step in RUNTIME.every("COPY")] == [
        ({"from": "builder"}, ["/opt/condenser", "/opt/condenser"])
    ]
    assert not any("pip" in step.rest for step in RUNTIME.every("RUN"))


def test_a_numeric_user_who_is_not_root_owns_the_volume_of_the_store_alone() -> None:
    user, volume = RUNTIME.last("USER").rest, RUNTIME.last("VOLUME").rest
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    assert RUNTIME.instructions.index(RUNTIME.last("USER")) > RUNTIME.instructions.index(RUNTIME.last("RUN"))
    assert "-o {} -g {} {}".format(*user.split(":"), volume) in RUNTIME.last("RUN").rest
    environment = RUNTIME.environment()
    assert environment["CONDENSER_STORE__URL"].startswith(f"sqlite:///{volume}/")
    assert (environment["PYTHONDONTWRITEBYTECODE"], environment["HOME"]) == ("1", "/tmp")


def test_the_program_is_started_without_a_shell_and_asked_for_its_health() -> None:
    check = RUNTIME.last("HEALTHCHECK")
    assert RUNTIME.last("ENTRYPOINT").words() == ["condenser"]
    assert RUNTIME.last("CMD").words() == ["serve", "--host", "0.0.0.0"]
    assert check.words() == ["condenser", "healthcheck"]
    assert {"interval", "timeout", "start-period", "retries"} <= set(check.flags)
    # Signals reach what no shell has started.
    assert all(RUNTIME.last(keyword).is_exec_form() for keyword in ("ENTRYPOINT", "CMD", "HEALTHCHECK"))
    assert RUNTIME.last("EXPOSE").rest == "8484"


def test_every_requirement_is_held_by_its_hash() -> None:
    installs = [step.rest for step in BUILDER.every("RUN") if "pip" in step.rest]
    assert installs
    for line in installs:
        for command in line.split("&&"):
            if " install " in command:
                assert "--require-hashes" in command or "--no-deps --no-index" in command


def test_the_rank_files_are_fetched_by_the_tool_that_verifies_them() -> None:
    fetches = [step for step in BUILDER.every("RUN") if "fetch_ranks" in step.rest]
    assert [step.words() for step in fetches] == [["python", "deploy/fetch_ranks.py", "--into", "proxy/tokens/ranks"]]
    assert not [path for path in context() if path.suffix == ".tiktoken"], "the image must fetch its own"


@pytest.mark.parametrize("step", [step for step in COPIES if "from" not in step.flags], ids=lambda step: step.rest)
def test_a_copied_file_exists_and_is_in_the_build_context(step: Instruction) -> None:
    sent = context()
    for source in step.words()[:-1]:
        assert any(path == Path(source) or Path(source) in path.parents for path in sent), source


def test_the_build_context_holds_nothing_but_what_is_copied() -> None:
    copied = [Path(source) for step in COPIES if "from" not in step.flags for source in step.words()[:-1]]
    strays = [path for path in context() if not any(path == one or one in path.parents for one in copied)]
    assert {path.parts[0] for path in strays} <= {"requirements"}


def test_nothing_is_taken_from_an_address_and_no_secret_is_in_the_image() -> None:
    assert "://" not in TEXT.replace("sqlite:///", "")
    assert not [line for line in TEXT.splitlines() if not line.startswith("#") and SECRET.search(line)]
    steps = TEXT[TEXT.index("\nFROM ") :]  # what stands before all stages is in no image
    assert not re.search(r"^\s*(ADD|ARG)\b", steps, re.MULTILINE), "a build argument stays readable in the image"


def test_labels_say_what_the_image_is() -> None:
    project = tomllib.loads((repository.ROOT / "pyproject.toml").read_text())["project"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in RUNTIME.pairs("LABEL").items()}
    assert labels == {
        "title": "condenser",
        "description": project["description"],
        "version": project["version"],
        "licenses": project["license"],
    }


def test_ignore_rules_are_read_as_docker_reads_them(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*\n!kept\n!deep/one.py\n**/*.pyc\nkept/data\n")
    names = ["a", "kept/b.py", "kept/b.pyc", "kept/data/c", "deep/one.py", "deep/two.py"]
    assert context_files(tmp_path, map(Path, names)) == [Path("kept/b.py"), Path("deep/one.py")]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> image.BuiltStage:
    """The final stage, its steps carried out in a folder of its own."""
    return image.build(STAGES, tmp_path_factory.mktemp("image"))


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_the_built_program_tells_its_version(runtime: image.BuiltStage) -> None:
    assert re.search(r"\d+\.\d+\.\d+", runtime.execute("condenser", "--version").stdout)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", ["proxy", "strategies"])
def test_the_built_program_runs_from_the_wheel(runtime: image.BuiltStage, package: str) -> None:
    python = str(runtime.inside("/opt/condenser/bin/python"))
    place = runtime.execute(python, "-c", f"import {package}; print({package}.__file__)").stdout.strip()
    assert Path(place).is_relative_to(runtime.root)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_prompts_models_and_rank_files_are_in_the_image(runtime: image.BuiltStage) -> None:
    (packages,) = runtime.inside("/opt/condenser").glob("lib/python*/site-packages")
    carried = {path.relative_to(packages).as_posix() for path in packages.rglob("*") if path.is_file()}
    source = {path.as_posix() for path in repository.files()}
    assert {path for path in source if path.startswith("strategies/prompts/")} <= carried
    assert {path.replace("config/", "proxy/_config/", 1) for path in source if path.startswith("config/")} <= carried
    assert {f"proxy/tokens/ranks/{name}.tiktoken" for name in ("cl100k_base", "o200k_base")} <= carried


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_the_started_image_answers_its_health_check(runtime: image.BuiltStage) -> None:
    with started(runtime, RUNTIME) as server:
        assert is_healthy(runtime, server)
    assert server.returncode in {0, -SIGTERM}
    assert runtime.inside("/data/condenser.db").exists()


@contextmanager
def started(built: image.BuiltStage, stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """The image's own command on a free port, told to stop at the end as `docker stop` tells it."""
    command = [*stage.last("ENTRYPOINT").words(), *stage.last("CMD").words(), "--port", str(free_port())]
    with subprocess.Popen(command, cwd=built.folder, env=built.environment) as server:
        try:
            yield server
        finally:
            server.terminate()
            server.wait(START_SECONDS)


def is_healthy(built: image.BuiltStage, server: subprocess.Popen[bytes]) -> bool:
    """Ask as the engine does: again and again through the start period."""
    deadline = monotonic() + START_SECONDS
    check = RUNTIME.last("HEALTHCHECK").words()
    while monotonic() < deadline and server.poll() is None:
        asked = subprocess.run(check, env=built.environment, capture_output=True, check=False)
        if asked.returncode == 0:
            return True
    return False


def context() -> list[Path]:
    return context_files(repository.ROOT, repository.files())
