"""How `wrap` points a command at its proxy, and where the command would send its requests without it.

Most programs read an address from the variables `OPENAI_BASE_URL`, `OPENAI_API_BASE` or `ANTHROPIC_BASE_URL`, which
`wrap` replaces. An address that they had becomes the proxy's upstream: a key goes to no other server because of `wrap`.
`KNOWN` has the commands that read it elsewhere; nothing is written that must be undone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from proxy.cli import USAGE
from proxy.errors import CommandFailed
from proxy.servers.upstream.choice import DEFAULTS, destination_of, destinations
from proxy.settings import Settings
from proxy.settings.tables import UpstreamEntry, http_address
from proxy.values import json_or_none, object_at, word_at

OPENAI, ANTHROPIC = (each.name for each in DEFAULTS)
CHATGPT = "https://chatgpt.com/backend-api/codex"
"""Where Codex sends the requests of those who are signed in with ChatGPT."""
VARIABLES = {"OPENAI_BASE_URL": OPENAI, "OPENAI_API_BASE": OPENAI, "ANTHROPIC_BASE_URL": ANTHROPIC}
MCP = "condenser"
"""The name that an agent has for our MCP server."""
TOOL_SEARCH, _OPENCODE = "ENABLE_TOOL_SEARCH", "OPENCODE_CONFIG_CONTENT"
_RUNNERS = ("node", "bun", "npx", "bunx", "uvx")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OF_PROVIDER = re.compile(r"\b(openai_base_url|model_provider)")
_CONFIG, _OTHER_PROVIDER = ("-c", "--config"), ("-p", "--profile", "--oss", "--local-provider")
_PATIENCE = 10.0  # seconds
Environment = Mapping[str, str]
Addresses = Mapping[str, tuple[str, str]]
"""By the name of a default upstream: the address that a command has for it, and where that stands."""


class Pointed(NamedTuple):
    """A command that is pointed at the proxy."""

    words: Sequence[str]
    addresses: Addresses
    variables: Environment = MappingProxyType({})
    """Variables that it needs besides those that any command gets."""
    note: str = ""  # what its user should know


def pointed(words: Sequence[str], url: str, environment: Environment) -> Pointed:
    """A command with what it needs to find the proxy at `url`, and the addresses that it had before.

    Raises `CommandFailed` if two of its variables contradict each other.
    """
    stated: dict[str, tuple[str, str]] = {}
    for variable, name in VARIABLES.items():
        if not (text := environment.get(variable)):
            continue
        # Most clients of Anthropic append /v1 themselves.
        address = (f"{text.rstrip('/').removesuffix('/v1')}/v1" if name == ANTHROPIC else text, variable)
        before = stated.setdefault(name, address)
        if _normal(*before) != _normal(*address):
            raise CommandFailed(_CONTRADICTION.format(before[1], variable), USAGE)
    at = _place(words)
    known = KNOWN.get(Path(words[at]).stem)
    return known(words, at + 1, url, environment, stated) if known else Pointed(words, stated)


def _place(words: Sequence[str]) -> int:
    """Where in a command the program stands, which a runner may have before it."""
    return 1 if Path(words[0]).name in _RUNNERS and len(words) > 1 else 0


def with_handles(words: Sequence[str], url: str) -> Sequence[str] | None:
    """A command of an agent with our MCP server besides its own, for the proxy at `url`; None for any other command.

    Its working directory may hold a package of any name, so that is not on the server's path (-P).
    """
    at = _place(words)
    program, arguments = sys.executable, ["-P", "-m", "proxy", "mcp", "--url", url]
    listed = {"mcpServers": {MCP: {"command": program, "args": arguments}}}
    members = (("command", program), ("args", arguments))
    options = {
        "claude": [f"--mcp-config={json.dumps(listed)}"],
        "codex": [word for key, it in members for word in ("-c", f"mcp_servers.{MCP}.{key}={json.dumps(it)}")],
    }.get(Path(words[at]).stem)
    return [*words[: at + 1], *options, *words[at + 1 :]] if options else None


def keeps_tool_search(addresses: Addresses) -> bool:
    """Whether Claude Code would search for tools without the proxy: it does where its address is Anthropic's own."""
    return ANTHROPIC not in addresses or _normal(*addresses[ANTHROPIC]) == DEFAULTS[1].base_url


def upstreams_for(settings: Settings, addresses: Addresses) -> Settings:
    """The settings with a command's own addresses in place of the default upstreams.

    Raises `CommandFailed` if the settings name another upstream than the command: which one its key is for, only its
    user knows.
    """
    own = {name: _normal(*address) for name, address in addresses.items()}
    if settings.upstream.base_url is None and not settings.upstreams:
        entries = [
            UpstreamEntry(name=each.name, base_url=own.get(each.name, each.base_url), protocols=tuple(each.protocols))
            for each in DEFAULTS
        ]
        return settings.model_copy(update={"upstreams": tuple(entries)}) if own else settings
    named = destinations(settings)
    for each in (each for each in DEFAULTS if each.name in own):
        if destination_of(named, each.protocols[0], ()).base_url != own[each.name]:
            raise CommandFailed(_TWO_SERVERS.format(addresses[each.name][1]), USAGE)
    return settings


def _normal(address: str, place: str) -> str:
    try:
        return http_address(address)
    except ValueError as error:
        raise CommandFailed(f"{place}: {error}", USAGE) from None


_CONTRADICTION = "{} and {} name two servers, and the command may read either: unset one, or name one with --upstream"
_TWO_SERVERS = """{} names another server than upstream.base_url or [[upstreams]] of the proxy's settings.
The command's key would go to a server that it may not be for: unset one of the two, or say which with --upstream"""
_ITSELF = "condenser: {} names its provider itself ({}), so it may not use the proxy"
_UNKNOWN = "condenser: opencode does not print its configuration, so it may not use the proxy for Anthropic's models"


def _codex(words: Sequence[str], at: int, url: str, environment: Environment, stated: Addresses) -> Pointed:
    """Codex reads the address of its provider from its own settings, over which `-c` goes.

    It tries a web socket first; the proxy refuses that, and Codex goes on over HTTP.
    """
    if own := _option_with_provider(words[at:]):
        return Pointed(words, {}, note=_ITSELF.format("codex", own))
    file = Path(environment.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml"
    config = _toml(file)
    provider = config.get("model_provider", OPENAI)
    key, address = "openai_base_url", config.get("openai_base_url")
    if provider != OPENAI:
        table = object_at(object_at(config, "model_providers"), provider)
        key, address = f"model_providers.{provider}.base_url", table.get("base_url")
        if not address or not _PLAIN.fullmatch(str(provider)):
            return Pointed(words, {}, note=_ITSELF.format("codex", f"model_provider in {file}"))
    addresses = dict(stated)
    if address:
        addresses[OPENAI] = str(address), f"{key} in {file}"
    elif OPENAI not in stated and _is_signed_in_with_chatgpt(words[:at], environment):
        addresses[OPENAI] = CHATGPT, "codex login"
    return Pointed([*words[:at], "-c", f"{key}={json.dumps(f'{url}/v1')}", *words[at:]], addresses)


def _option_with_provider(words: Sequence[str]) -> str:
    """The first option of Codex that names a provider or its address; "" if there is none."""
    for word, following in pairwise((*words, "")):
        option, _, _ = word.partition("=")
        if option in _OTHER_PROVIDER:
            return option
        if word.startswith(_CONFIG) and _OF_PROVIDER.search(following if word in _CONFIG else word):
            return _CONFIG[0]
    return ""


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file} says where codex sends its key, and cannot be read: {error}", USAGE) from None


def _is_signed_in_with_chatgpt(codex: Sequence[str], environment: Environment) -> bool:
    """Whether Codex itself says so; it is asked, because its credentials are its own."""
    asked = _asked([*codex, "login", "status"], environment)
    return asked is not None and "using ChatGPT" in asked.stdout + asked.stderr


def _opencode(words: Sequence[str], at: int, url: str, environment: Environment, stated: Addresses) -> Pointed:
    """opencode reads a variable that is laid over its settings; Anthropic's variable it reads without a `/v1`."""
    asked = _asked([*words[:at], "debug", "config"], environment)
    config = json_or_none(asked.stdout) if asked is not None else None
    content = json_or_none(environment.get(_OPENCODE) or "{}")
    if not isinstance(config, dict) or not isinstance(content, dict):
        return Pointed(words, stated, note=_UNKNOWN)
    addresses, providers = dict(stated), dict(object_at(content, "provider"))
    for name in (OPENAI, ANTHROPIC):
        if text := word_at(object_at(object_at(object_at(config, "provider"), name), "options"), "baseURL"):
            addresses[name] = text, f"provider.{name}.options.baseURL of opencode's settings"
        own = object_at(providers, name)
        providers[name] = {**own, "options": {**object_at(own, "options"), "baseURL": f"{url}/v1"}}
    return Pointed(words, addresses, {_OPENCODE: json.dumps({**content, "provider": providers})})


def _asked(words: Sequence[str], environment: Environment) -> subprocess.CompletedProcess[str] | None:
    """What a command says; None if it cannot be run, which running it in earnest will tell."""
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": _PATIENCE}
    try:
        return subprocess.run(words, env=environment, text=True, check=False, **options)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None


KNOWN: Mapping[str, Callable[[Sequence[str], int, str, Environment, Addresses], Pointed]] = {
    "codex": _codex,
    "opencode": _opencode,
}
