"""The documents say what the program has: every name in the code stands in its document, and the other way round."""

import inspect
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from proxy import errors
from proxy.cli import COMMANDS, PAGES
from proxy.condensing import account
from proxy.controls import KEYS, MEMORY
from proxy.controls import ROWS as CONTROLS
from proxy.errors import ProxyError
from proxy.reasons import REASONS, Action, Trigger
from proxy.settings import CONFIG_VARIABLE, PREFIX, Settings, environment_tree, load_settings
from proxy.telemetry import METRICS, Telemetry
from strategies import TABLE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = ROOT / "config" / "condenser.toml"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
TEXTS = [*DOCUMENTS, CONFIG]
UNSET = "unset"
# The home of the default store in config/condenser.toml.
DATA_HOME = "/home/you/.local/share"
# Written in parts: the names themselves must stand nowhere.
INDEXES = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("docker", "io"),
    ("ghcr", "io"),
)

Row = dict[str, str]


def read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def headings(text: str, level: int | None = None) -> list[str]:
    """Headings outside of code blocks, all or those of one level."""
    found = re.findall(r"^(#+) (.+)$", without_code(text), re.MULTILINE)
    return [title for marks, title in found if level is None or len(marks) == level]


def without_code(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)


def section(text: str, title: str, level: int = 2) -> str:
    """The text under a heading, up to the next one of its level."""
    marks = "#" * level
    found = re.search(rf"^{marks} {re.escape(title)}$(.*?)(?=^{marks} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no heading '{title}'"
    return found.group(1)


def rows(text: str) -> Iterator[Row]:
    """The rows of all tables, by their column's titles."""
    titles: list[str] = []
    for line, after in pairwise([*without_code(text).splitlines(), ""]):
        if not line.startswith("|"):
            titles = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not titles:
            titles = cells
            assert is_rule(after), f"these rows have no titles: {line}"
        elif not is_rule(line):
            yield dict(zip(titles, cells, strict=True))


def is_rule(line: str) -> bool:
    """Whether a line parts the titles of a table from its rows."""
    return "-" in line and set(line) <= set("|-: ")


def names(cells: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cells)


def column(text: str, title: str) -> set[str]:
    """All names in one column of all tables that have it."""
    return {name for row in rows(text) for name in names(row.get(title, ""))}


# -- reasons, strategies ------------------------------------------------------------------------------------


def test_every_reason_has_a_heading_and_every_heading_a_reason() -> None:
    assert sorted(headings(read("reference/reasons.md"), 3)) == sorted(REASONS)


def test_every_strategy_has_a_heading() -> None:
    assert [title for title in headings(read("strategies.md"), 2) if title in TABLE] == list(TABLE)


def bounds(option: Field[Any]) -> str:
    low, high = option.metadata["low"], option.metadata["high"]
    if low is None:
        return ""
    return f"≥ {low}" if high is None else f"{low}–{high}"


@pytest.mark.parametrize("strategy", TABLE)
def test_every_option_of_a_strategy_is_named_with_its_default_and_bounds(strategy: str) -> None:
    said = [row for row in rows(section(read("strategies.md"), strategy)) if "option" in row]
    documented = [(*names(row["option"]), row["default"], row["bounds"]) for row in said]
    assert documented == [
        (each.name, str(each.default).lower(), bounds(each)) for each in fields(TABLE[strategy].options)
    ]


@pytest.mark.parametrize("strategy", TABLE)
def test_every_option_of_a_strategy_is_named_in_a_test_about_strategies(strategy: str) -> None:
    options = {each.name for each in fields(TABLE[strategy].options)}
    for file in [*(ROOT / "tests" / "strategies").rglob("test_*.py"), *(ROOT / "tests" / "http").glob("test_*.py")]:
        options -= {option for option in options if option in file.read_text("utf-8")}
    assert options == set()


def test_the_table_of_strategies_has_one_row_for_each() -> None:
    assert [name for row in rows(read("strategies.md")) for name in names(row.get("name", ""))] == list(TABLE)


# -- settings -----------------------------------------------------------------------------------------------


def table_in(annotation: Any) -> type[BaseModel] | None:
    """The table class that a setting's type is, or has in it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := table_in(each))), None)


LISTS = ("models", "upstreams", "auth.keys")


def settings_keys(table: type[BaseModel] = Settings, path: str = "") -> dict[str, Any]:
    """Every key with its default; those of an entry of a list by `models[].key`, options by their strategy."""
    found: dict[str, Any] = {}
    for name, info in table.model_fields.items():
        key = path + (info.alias or name)
        inner = None if path.startswith("models") else table_in(info.annotation)
        if key in LISTS:
            found |= settings_keys(inner or Settings, f"{key}[].")
        elif inner is not None:
            found |= settings_keys(inner, key + ".")
        else:
            found[key] = info.get_default(call_default_factory=True)
    return found


def option_keys() -> dict[str, Any]:
    return {f"{name}.{each.name}": each.default for name, row in TABLE.items() for each in fields(row.options)}


SETTINGS_KEYS = {key: value for key, value in settings_keys().items() if key != "options"}
ALL_KEYS = SETTINGS_KEYS | option_keys()


def documented_keys() -> dict[str, Row]:
    keyed = (row for row in rows(read("reference/configuration.md")) if "key" in row)
    return {name: row for row in keyed for name in names(row["key"])}


def test_every_settings_key_is_in_the_configuration_document_and_no_other() -> None:
    assert sorted(documented_keys()) == sorted(SETTINGS_KEYS)


def plain(value: Any) -> Any:
    """A setting's value as TOML has it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("key", SETTINGS_KEYS)
def test_a_documented_default_is_the_default(key: str) -> None:
    said, default = documented_keys()[key]["default"], SETTINGS_KEYS[key]
    if said == "see below":
        assert key in ("store.url", "sessions.headers")
    elif said == "required":
        assert default is PydanticUndefined
    else:
        assert (None if said == UNSET else tomllib.loads(f"x = {said.strip('`')}")["x"]) == plain(default)


@pytest.mark.parametrize("key", [key for key in ALL_KEYS if not key.startswith(LISTS)])
def test_the_variable_of_a_key_is_made_as_the_document_says(key: str) -> None:
    variable = PREFIX + key.upper().replace(".", "__").replace("-", "_")
    *tables, last = key.replace("-", "_").split(".")
    tree: Any = environment_tree({variable: "x"})
    for table in tables:
        tree = tree[table]
    assert tree == {last: "x"}


# -- config/condenser.toml ----------------------------------------------------------------------------------


def uncommented(*, examples: bool) -> str:
    """The file with its defaults switched on, and with its examples too where that is wanted."""
    text = re.sub(r"^#(?=[a-z\[\]\"])", "", CONFIG.read_text("utf-8"), flags=re.MULTILINE)
    return re.sub(r"^#\? ", "", text, flags=re.MULTILINE) if examples else text


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a config file may be written that the settings then read."""
    for variable in environment_names():
        monkeypatch.delenv(variable)
    path = tmp_path / "condenser.toml"
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    monkeypatch.setenv("XDG_DATA_HOME", DATA_HOME)
    return path


def environment_names() -> list[str]:
    return [variable for variable in os.environ if variable.startswith(PREFIX)]


def test_the_config_file_changes_nothing_as_it_stands() -> None:
    assert tomllib.loads(CONFIG.read_text("utf-8")) == {}


def test_the_config_file_uncommented_gives_exactly_the_defaults(config: Path) -> None:
    config.write_text("")
    defaults = load_settings()
    config.write_text(uncommented(examples=False))
    loaded = load_settings()
    tables = {name: {each.name: each.default for each in fields(row.options)} for name, row in TABLE.items()}
    assert loaded.model_dump(exclude={"options"}) == defaults.model_dump(exclude={"options"})
    assert loaded.options == tables


def test_the_config_file_with_its_examples_is_valid(config: Path) -> None:
    one_way = uncommented(examples=True).replace('upstream = "anthropic"\n', "")  # to name the server of own calls
    config.write_text(one_way.replace('mode = "passthrough"', 'mode = "keys"'))
    assert load_settings().for_model("qwen3-8b") is not None


def keys_in(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if path + name in LISTS:
            yield from (f"{path}{name}[].{key}" for key in value[0])
        elif isinstance(value, dict) and path + name not in ALL_KEYS:
            yield from keys_in(value, f"{path}{name}.")
        else:
            yield path + name


def test_the_config_file_has_every_key_and_no_other() -> None:
    assert sorted(keys_in(tomllib.loads(uncommented(examples=True)))) == sorted(ALL_KEYS)


# -- HTTP ---------------------------------------------------------------------------------------------------


def test_the_table_of_request_headers_is_that_of_the_controls() -> None:
    table = rows(section(read("reference/http.md"), "Request headers"))
    said = [list(row.values()) for row in table if "sticks" in row]
    assert said == [
        [f"`X-Condenser-{row.key.title()}`", row.what, row.sticks, row.settings] for row in CONTROLS.values()
    ]


def test_the_config_file_lists_every_control() -> None:
    comment = re.search(r"(?:^# .*\n)+(?=#allow = )", CONFIG.read_text("utf-8"), re.MULTILINE)
    assert comment
    listed = re.search(r"for all: ([^.]*)\.", comment[0].replace("\n# ", " "))
    assert listed
    assert listed[1].split(", ") == list(KEYS)


def test_every_setting_that_a_control_goes_before_is_a_key() -> None:
    assert {key for row in CONTROLS.values() for key in names(row.settings)} <= {*ALL_KEYS, *MEMORY}


def test_every_response_header_is_documented() -> None:
    source = inspect.getsource(account.headers)
    # The protocol is the path's, whatever is decided.
    made = {*re.findall(r"X-Condenser-[A-Za-z-]+", source), "Server-Timing", "X-Condenser-Protocol"}
    assert column(section(read("reference/http.md"), "Response headers"), "header") == made


@pytest.mark.parametrize(("title", "values"), [("action", Action), ("trigger", Trigger)])
def test_every_action_and_trigger_is_documented(title: str, values: type[Action | Trigger]) -> None:
    assert column(section(read("reference/http.md"), "Response headers"), title) == set(values)


def test_every_error_of_ours_is_documented_with_its_status_and_type() -> None:
    table = [row for row in rows(section(read("reference/http.md"), "Errors")) if "code" in row]
    said = {(row["status"], kind, code) for row in table for kind in names(row["type"]) for code in names(row["code"])}
    kinds = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, ProxyError)]
    assert {(str(each.status), each.type, each.code) for each in kinds if each.code} <= said


def test_every_metric_is_documented_with_its_labels() -> None:
    found = Telemetry().registry.collect()
    made = {metric.name + ("_total" if metric.type == "counter" else "") for metric in found}
    table = section(read("reference/telemetry.md"), "Metrics")
    assert column(table, "metric") == made
    said = {name: tuple(names(row["labels"])) for row in rows(table) for name in names(row["metric"])}
    assert {f"condenser_{name}": labels for name, (_, _, labels) in METRICS.items()}.items() <= said.items()


def test_every_alert_is_documented() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()))
    assert column(section(read("reference/telemetry.md"), "Monitoring"), "alert") == alerts


def test_every_command_is_documented() -> None:
    listed = column(section(read("reference/commands.md"), "Commands"), "command")
    assert listed == {f"condenser {name}" for name in COMMANDS}


def test_every_help_names_a_section_that_is_there() -> None:
    for page in (*PAGES.values(), "reference/commands.md#windows"):
        file, _, anchor = page.partition("#")
        assert not anchor or anchor in map(slug, headings(read(file))), page


# -- links, files, targets ----------------------------------------------------------------------------------


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def links(path: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text("utf-8")))
    return [link for link in found if "://" not in link]


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for link in links(path):
        place, _, anchor = link.partition("#")
        target = path.parent / place if place else path
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in map(slug, headings(target.read_text("utf-8"))), f"{link}: no such heading"


@pytest.mark.parametrize("path", TEXTS, ids=relative)
def test_every_file_of_the_repository_that_is_named_is_there(path: Path) -> None:
    folders = "bench|config|deploy|docs|proxy|requirements|strategies|tests"
    named = re.findall(rf"(?<![\w/.])(?:{folders})/[\w./*-]*\.(?:py|md|toml|txt|json)", path.read_text("utf-8"))
    assert [each for each in named if not list(ROOT.glob(each))] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_make_target_that_is_named_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE)) <= targets


@pytest.mark.parametrize("path", TEXTS, ids=relative)
def test_no_package_index_is_named(path: Path) -> None:
    text = path.read_text("utf-8").lower()
    assert [host for host in map(".".join, INDEXES) if host in text] == []
    assert "index-url" not in text


def test_every_link_of_llms_txt_leads_to_a_page() -> None:
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \w", (ROOT / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert len(listed) > 15
    assert [link for link in listed if not (ROOT / link).is_file()] == []


def test_every_decision_is_listed_in_the_design_and_has_its_three_parts() -> None:
    files = sorted((DOCS / "decisions").glob("*.md"))
    assert [f"decisions/{file.name}" for file in files] == [
        link.removeprefix("../") for link in links(DOCS / "internals/design.md") if link.startswith("../decisions/")
    ]
    numbers = [file.name.partition("-")[0] for file in files]
    assert numbers == sorted({f"{int(each):04}" for each in numbers})  # gaps are numbers that nobody needed
    for file in files:
        assert headings(file.read_text("utf-8"), 2) == ["Context", "Choice", "Cost"]


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop().resolve()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        waiting += [path.parent / link.partition("#")[0] for link in links(path) if not link.startswith("#")]
    assert set(DOCUMENTS) <= reached
