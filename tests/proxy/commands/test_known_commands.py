"""Where a command that `wrap` runs sends its requests, with the proxy and without it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.known_commands import CHATGPT, keeps_tool_search, pointed, upstreams_for
from proxy.errors import CommandFailed
from proxy.servers.upstream.choice import DEFAULTS, destinations
from proxy.settings import Settings

URL = "http://127.0.0.1:1"
OVERRIDE = ["-c", f'openai_base_url="{URL}/v1"']


def reached(command: str, settings: Settings | None = None, **environment: str) -> list[str]:
    """The addresses of the upstreams of the proxy that a command gets."""
    found = pointed([command], URL, environment)
    used = upstreams_for(settings or Settings(), found.addresses)
    return [each.base_url for each in destinations(used)]


def test_an_address_that_a_command_has_becomes_the_proxys_upstream() -> None:
    openai, anthropic = (each.base_url for each in DEFAULTS)
    assert reached("agent") == reached("agent", OPENAI_BASE_URL="") == [openai, anthropic]
    assert reached("agent", OPENAI_BASE_URL="http://mine:1/v1/") == ["http://mine:1/v1", anthropic]
    assert reached("agent", OPENAI_API_BASE="http://mine:1/v1") == ["http://mine:1/v1", anthropic]
    for address in ("http://mine:1/a", "http://mine:1/a/", "http://mine:1/a/v1"):
        assert reached("agent", ANTHROPIC_BASE_URL=address) == [openai, "http://mine:1/a/v1"]


@pytest.mark.parametrize(
    ("environment", "upstream", "says"),
    [
        ({"OPENAI_BASE_URL": "http://a", "OPENAI_API_BASE": "http://b"}, None, "OPENAI_BASE_URL and OPENAI_API_BASE"),
        ({"OPENAI_BASE_URL": "http://a/v1"}, "http://b/v1", "OPENAI_BASE_URL names another server"),
        ({"ANTHROPIC_BASE_URL": "http://a"}, "http://b/v1", "ANTHROPIC_BASE_URL names another server"),
        ({"OPENAI_BASE_URL": "http://user:hunter2@a/v1"}, None, "OPENAI_BASE_URL: must hold no user"),
    ],
)  # fmt: skip
def test_a_key_goes_to_no_server_that_only_one_of_two_settings_names(
    environment: dict[str, str], upstream: str | None, says: str
) -> None:
    settings = Settings.model_validate({"upstream": {"base_url": upstream}})
    with pytest.raises(CommandFailed, match=says) as raised:
        reached("agent", settings, **environment)
    assert "hunter2" not in str(raised.value)
    assert reached("agent", settings) == ([upstream] if upstream else [each.base_url for each in DEFAULTS])


def test_tools_are_searched_where_they_would_be_without_the_proxy() -> None:
    for address, stays in ((None, True), ("https://api.anthropic.com", True), ("http://gateway", False)):
        environment = {"ANTHROPIC_BASE_URL": address} if address else {}
        assert keeps_tool_search(pointed(["claude"], URL, environment).addresses) is stays


def codex(home: Path, config: str, *words: str, **more: str) -> Any:
    (home / "config.toml").write_text(config)
    return pointed(["/no/such/codex", *words], URL, {"CODEX_HOME": str(home), **more})


def test_codex_is_told_by_an_option_and_its_own_address_is_the_upstream(tmp_path: Path) -> None:
    plain = codex(tmp_path, "", "exec", "mend the model_provider")
    assert (plain.words, plain.addresses) == (["/no/such/codex", *OVERRIDE, "exec", "mend the model_provider"], {})
    own = codex(tmp_path, 'openai_base_url = "http://mine/v1"', OPENAI_BASE_URL="http://unread/v1")
    assert own.addresses["openai"][0] == "http://mine/v1"
    provider = 'model_provider = "mine"\n[model_providers.mine]\nbase_url = "http://mine/v1"'
    other = codex(tmp_path, provider)
    assert other.words[1:] == ["-c", f'model_providers.mine.base_url="{URL}/v1"']
    assert other.addresses["openai"][0] == "http://mine/v1"


@pytest.mark.parametrize("words", [["--oss"], ["-p", "x"], ["-c", "model_provider=x"], ["--config=openai_base_url=x"]])
def test_codex_with_a_provider_on_its_command_line_is_left_alone(words: list[str], tmp_path: Path) -> None:
    found = codex(tmp_path, "", *words)
    assert (found.words, found.addresses) == (["/no/such/codex", *words], {})
    assert "codex names its provider itself" in found.note


def test_codex_with_settings_that_cannot_be_read_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="says where codex sends its key"):
        codex(tmp_path, "model_provider = [")


def scripted(folder: Path, name: str, text: str) -> str:
    """A command of this name that says a text on both streams."""
    file = folder / name
    file.write_text(f"#!{sys.executable}\nimport sys\nfor to in (sys.stdout, sys.stderr): print({text!r}, file=to)\n")
    file.chmod(0o755)
    return str(file)


def test_codex_that_is_signed_in_with_chatgpt_goes_there(tmp_path: Path) -> None:
    for said, there in (("Logged in using ChatGPT", True), ("Logged in using an API key", False)):
        found = pointed([scripted(tmp_path, "codex", said)], URL, {"CODEX_HOME": str(tmp_path)})
        assert found.addresses == ({"openai": (CHATGPT, "codex login")} if there else {})


def test_opencode_is_told_by_a_variable_over_its_own_settings(tmp_path: Path) -> None:
    own = {"provider": {"anthropic": {"options": {"baseURL": "http://mine/v1"}}}}
    command = scripted(tmp_path, "opencode", json.dumps(own))
    before = {"theme": "x", "provider": {"openai": {"name": "O"}}}
    found = pointed([command, "run"], URL, {"OPENCODE_CONFIG_CONTENT": json.dumps(before)})
    assert found.addresses["anthropic"][0] == "http://mine/v1"
    options = {"options": {"baseURL": f"{URL}/v1"}}
    assert json.loads(found.variables["OPENCODE_CONFIG_CONTENT"]) == {
        "theme": "x",
        "provider": {"openai": {"name": "O", **options}, "anthropic": options},
    }
    assert pointed([scripted(tmp_path, "opencode", "usage:")], URL, {}).note.startswith("condenser: opencode does not")
