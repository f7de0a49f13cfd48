"""The laws of the two packages: who may import whom, how long a function may be, what happens at import.

`strategies` is pure: the standard library without clock, randomness, I/O or loops, and itself. `proxy` imports
`strategies`, never the reverse. Each client library has one module that knows it. Nothing runs at import.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median
from typing import get_args

import pytest
from pydantic import BaseModel

from proxy.settings import Settings
from proxy.telemetry import AMOUNTS, METRICS
from strategies import TABLE

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("proxy", "strategies")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# All that a pure core may want of the standard library; a name that is added here needs a reason in its review.
PURE = {
    "__future__", "abc", "array", "bisect", "collections", "collections.abc", "dataclasses", "difflib", "enum",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "re", "string", "sys", "textwrap",
    "types", "typing", "unicodedata", "zlib",
}  # fmt: skip
# The prompt templates and the keyword lists are data of the package itself, read once.
PURE_BUT = {
    "strategies/prompts/__init__.py": {"importlib.resources"},
    "strategies/keywords/__init__.py": {"importlib.resources", "tomllib"},
}
ONLY_IMPORTERS = {
    "redis": "proxy/store/redis.py",
    "cryptography": "proxy/store/sealing.py",
    "httpx": "proxy/servers/upstream/__init__.py",
    "aiohttp": "proxy/servers/upstream/forwarding.py",
    "mcp": "proxy/commands/mcp.py",
}

# From the ground to the roof: a folder, or a file beside the folders, imports only what is named before it.
FLOORS = (
    "strategies/prompts/", "strategies/keywords/", "strategies/core/", "strategies/dialects/", "strategies/memory/",
    "strategies/", "proxy/__init__.py",
    "proxy/quoting.py", "proxy/operator/__init__.py", "proxy/operator/plots.py", "proxy/reasons.py", "proxy/values.py",
    "proxy/errors.py",
    "proxy/controls.py", "proxy/runtime/", "proxy/store/", "proxy/tokens/",
    "proxy/settings/", "proxy/http/", "proxy/servers/upstream/",
    "proxy/servers/", "proxy/protocols/", "proxy/callers/", "proxy/bodies/", "proxy/asking/", "proxy/conversations/",
    "proxy/condensing/", "proxy/log.py",
    "proxy/telemetry.py", "proxy/tracing.py", "proxy/services.py", "proxy/turn/",
    "proxy/operator/", "proxy/app.py", "proxy/cli.py", "proxy/commands/replaying/", "proxy/commands/",
    "proxy/__main__.py",
)  # fmt: skip

MEDIAN_LINES, MAX_LINES, MAX_LINES_OF_A_FILE = 12, 60, 600


@cache
def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), name(path))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


@cache
def imported(path: Path) -> list[str]:
    """Every module that a file imports, wherever in the file it does so."""
    found: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno} imports relatively"
            found.append(node.module or "")
    return found


def is_of(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def modules_of(package: str) -> list[Path]:
    return [path for path in MODULES if name(path).startswith(package + "/")]


@pytest.mark.parametrize("path", modules_of("strategies"), ids=name)
def test_a_strategy_imports_the_pure_standard_library_and_strategies_only(path: Path) -> None:
    allowed = PURE | PURE_BUT.get(name(path), set())
    assert [each for each in imported(path) if each not in allowed and not is_of(each, "strategies")] == []


@pytest.mark.parametrize("path", modules_of("strategies"), ids=name)
def test_a_strategy_calls_nothing_that_reads_or_writes(path: Path) -> None:
    impure = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
    called = {node.func.id for node in nodes(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called & impure == set()
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor) for node in nodes(path))


def floor(path: Path) -> int:
    """The floor on which a file stands, counted from the ground."""
    inside = [each for each in FLOORS if name(path).startswith(each)]
    return FLOORS.index(max(inside, key=len))


@cache
def neighbours(path: Path) -> dict[Path, str]:
    """The files of the two packages that a file imports, also where only types are checked, and by what module."""
    return files_of(nodes(path), path)


@cache
def by_module() -> dict[str, Path]:
    return {name(each).removesuffix(".py").removesuffix("/__init__").replace("/", "."): each for each in MODULES}


def files_of(found: Iterable[ast.AST], path: Path) -> dict[Path, str]:
    files = by_module()
    wanted = [
        f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in files else node.module
        for node in found
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    ]
    return {files[each]: each for each in wanted if each in files and files[each] != path}


@cache
def chain_length(path: Path) -> int:
    """How many files of the proxy the longest chain has that begins at a file, by imports at the top level."""
    below = [file for file in files_of(tree(path).body, path) if name(file).startswith("proxy/")]
    return 1 + max(map(chain_length, below), default=0)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_file_imports_nothing_from_a_floor_above_its_own(path: Path) -> None:
    assert [module for file, module in neighbours(path).items() if floor(file) > floor(path)] == []


def test_no_files_import_each_other_in_a_circle() -> None:
    TopologicalSorter({path: neighbours(path).keys() for path in MODULES}).prepare()


def test_no_chain_of_imports_within_the_proxy_is_longer_than_twenty() -> None:
    assert max(map(chain_length, modules_of("proxy"))) <= 20


def test_the_core_knows_no_strategy() -> None:
    for path in (ROOT / "strategies" / "core").glob("*.py"):
        known = [each for each in imported(path) if is_of(each, "strategies")]
        data = ("strategies.prompts", "strategies.keywords")
        assert all(is_of(each, "strategies.core") or each in data for each in known), name(path)


def test_no_strategy_knows_another() -> None:
    files = {f"strategies.{strategy.replace('-', '_')}" for strategy in TABLE}
    for path in (ROOT / "strategies").glob("*.py"):
        if path.name != "__init__.py":
            assert not files & set(imported(path)), name(path)


def test_importing_the_strategies_loads_nothing_of_the_proxy() -> None:
    loaded = in_a_fresh_process("import strategies, strategies.pipeline, sys; print(*sys.modules)").split()
    outside = {"proxy", "asyncio", "redis", "httpx", "aiohttp", "fastapi", "pydantic", "tiktoken", "socket"}
    assert outside & set(loaded) == set()


@pytest.mark.parametrize(("library", "importer"), ONLY_IMPORTERS.items(), ids=ONLY_IMPORTERS)
def test_a_client_library_has_one_module_that_knows_it(library: str, importer: str) -> None:
    importers = {name(path) for path in MODULES if any(is_of(each, library) for each in imported(path))}
    assert importers == {importer}


def test_importing_the_app_builds_nothing() -> None:
    """Two apps must be able to live in one process: no FastAPI instance, no event loop, no thread, no open file."""
    found = in_a_fresh_process(
        "import gc, threading, proxy.app, fastapi\n"
        "apps = [each for each in gc.get_objects() if isinstance(each, fastapi.FastAPI)]\n"
        "import sys\n"
        "print(len(apps), threading.active_count(), hasattr(proxy.app, 'app'), 'opentelemetry.sdk' in sys.modules)"
    )
    assert found.split() == ["0", "1", "False", "False"]


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_only_defines_things(path: Path) -> None:
    """At the top level of a module stand imports, definitions, constants and guards; nothing is done there."""
    for node in tree(path).body:
        if isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant), f"{name(path)}:{node.lineno} does something at import"
        assert not isinstance(node, ast.For | ast.While | ast.With), f"{name(path)}:{node.lineno}"


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- protocols --------------------------------------------------------------------------------------------------

WIRE = {
    *("messages", "choices", "delta", "finish_reason", "tool_calls", "tool_call_id", "function_call"),
    *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "stop_reason", "content_block"),
}
"""Members of requests, replies and events in one protocol or another."""
KNOW_CHAT = ("strategies/dialects/", "proxy/protocols/", "proxy/commands/replaying/", "proxy/commands/")
OTHER_MEANINGS = {
    "strategies/core/cards.py": {"messages"},  # of a stored card
    "proxy/condensing/account.py": {"messages"},  # a member of a dry run's answer
    "proxy/servers/refusals.py": {"prompt_tokens", "input_tokens"},  # of errors, in whatever protocol they come
    "proxy/bodies/message_cache.py": {"messages"},  # an attribute
    "proxy/turn/compress.py": {"messages"},  # the list that comes and goes, in whatever protocol it is
    "proxy/turn/passing.py": {"messages"},  # a segment of a path
    "proxy/conversations/admin.py": {"messages", "prompt_tokens", "completion_tokens"},  # of an answer about a session
    "proxy/conversations/codec.py": {"messages"},
    "proxy/conversations/histories.py": {"messages"},
    "proxy/conversations/supply.py": {"messages"},
    "proxy/conversations/requests.py": {"prompt_tokens", "completion_tokens"},
    "proxy/telemetry.py": {"prompt_tokens", "completion_tokens"},  # amounts of a request
}


def docstrings(path: Path) -> set[int]:
    """The strings of a file that say something to its reader only."""
    return {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}


@pytest.mark.parametrize("path", [each for each in MODULES if not name(each).startswith(KNOW_CHAT)], ids=name)
def test_only_a_dialect_or_an_endpoint_names_members_of_a_protocol(path: Path) -> None:
    told = docstrings(path)
    texts = {
        node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in told
    }
    named = {word for word in WIRE if any(text == word or f'"{word}"' in text for text in texts)}
    assert named == OTHER_MEANINGS.get(name(path), set())


# --- size -------------------------------------------------------------------------------------------------------


def functions(package: str) -> list[tuple[str, int]]:
    """Each function with its lines, decorators and docstring left out of neither."""
    return [
        (f"{name(path)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for path in modules_of(package)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_short(package: str) -> None:
    lengths = functions(package)
    assert median(length for _, length in lengths) < MEDIAN_LINES
    assert [each for each in lengths if each[1] > MAX_LINES] == []


def test_no_file_is_long() -> None:
    lengths = {name(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {file: length for file, length in lengths.items() if length > MAX_LINES_OF_A_FILE} == {}


# --- the table of strategies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", TABLE)
def test_a_strategy_is_one_file_with_its_class(strategy: str) -> None:
    path = ROOT / "strategies" / f"{strategy.replace('-', '_')}.py"
    classes = [node.name for node in tree(path).body if isinstance(node, ast.ClassDef)]
    assert TABLE[strategy].make.__name__ in classes
    assert TABLE[strategy].make.name == strategy


@pytest.mark.parametrize("strategy", TABLE)
def test_a_strategy_has_its_tests(strategy: str) -> None:
    assert (ROOT / "tests" / "strategies" / f"test_{strategy.replace('-', '_')}.py").exists()


# --- the settings -----------------------------------------------------------------------------------------------


def fields_of(model: type[BaseModel]) -> Iterator[str]:
    """The names of a table's fields, and of those of the tables in it."""
    for field_name, field in model.model_fields.items():
        yield field_name
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from fields_of(kind)


def test_every_setting_is_read_somewhere() -> None:
    readers = [path for path in MODULES if name(path).startswith("proxy/")]
    read = {node.attr for path in readers for node in nodes(path) if isinstance(node, ast.Attribute)}
    assert set(fields_of(Settings)) - read == set()


def test_every_metric_is_counted_somewhere() -> None:
    calls = [node for path in modules_of("proxy") for node in nodes(path) if isinstance(node, ast.Call)]
    ways = {"count", "metric", "show"}
    counting = [call for call in calls if ways & {*map(called_name, (call.func, *call.args[:1]))}]
    counted = {word.value for call in counting for word in call.args if isinstance(word, ast.Constant)}
    kept = [node for node in nodes(ROOT / "proxy/telemetry.py") if isinstance(node, ast.Subscript)]
    kept = [node for node in kept if called_name(node.value) == "_seconds"]  # until the metric is read
    counted |= {word.value for node in kept for word in ast.walk(node.slice) if isinstance(word, ast.Constant)}
    assert set(METRICS) - counted == {name for name, *_ in AMOUNTS.values()}


def called_name(node: ast.expr) -> str:
    """The last name of an expression such as `self.telemetry.count`."""
    return node.attr if isinstance(node, ast.Attribute) else ""
