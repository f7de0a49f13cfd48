"""`condenser mcp`, asked over stdio by the official SDK: an agent reads its own conversation back, and no other."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer
from mcp.types import TextContent

from proxy.cli import parse
from proxy.commands.mcp import made
from tests.http.test_own_sessions import MINE, OTHERS, masked
from tests.proxy.command_line import run
from tests.support.stage import Stage, agent, proxy_with_upstream

ROOT = Path(__file__).parents[2]
Call = tuple[str, dict[str, str]]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(strategy="mask") as built:
        yield built


def answers(server: MCPServer | StdioServerParameters, *calls: Call) -> list[tuple[bool, str]]:
    """Whether each call failed, and the text that it answered; the server offers its two tools."""

    async def ask() -> list[tuple[bool, str]]:
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            offered = {tool.name: sorted(tool.input_schema["properties"]) for tool in tools}
            assert offered == {"search_memory": ["query", "session"], "expand": ["handle", "session"]}
            results = [await client.call_tool(name, dict(arguments)) for name, arguments in calls]
        parts = [[part.text for part in each.content if isinstance(part, TextContent)] for each in results]
        return [(bool(each.is_error), "".join(texts)) for each, texts in zip(results, parts, strict=True)]

    return asyncio.run(ask())


@pytest.fixture
def served(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MCPServer]:
    """The server of an agent with this key, in this process."""

    def serving(key: str, *words: str, url: str = stage.proxy.url) -> MCPServer:
        monkeypatch.setenv("OPENAI_API_KEY", key)
        return made(parse(["mcp", "--url", url, *words]))

    return serving


def test_an_agent_gets_back_what_a_line_says_was_left_out(stage: Stage) -> None:
    handle, text = masked(stage, "s", MINE)
    calls: list[Call] = [("expand", {"handle": handle}), ("search_memory", {"query": "Fix which door?"})]
    command = ["-m", "proxy", "mcp", "--url", stage.proxy.url]
    over_stdio = StdioServerParameters(command=sys.executable, args=command, env={"OPENAI_API_KEY": "mine"}, cwd=ROOT)
    expanded, found = answers(over_stdio, *calls)
    assert expanded == (False, text)
    assert not found[0]
    assert "[message 1, user]\nFix the door." in found[1]


def test_the_session_of_the_command_line_holds_where_a_call_names_none(
    stage: Stage, served: Callable[..., MCPServer]
) -> None:
    handle, text = masked(stage, "s", MINE)
    masked(stage, "t", MINE)
    calls: list[Call] = [("expand", {"handle": handle}), ("expand", {"handle": handle, "session": "no-such"})]
    first, second = answers(served("mine", "--session", "t"), *calls)
    assert first == (False, text)
    assert second[0]


def test_an_agent_of_another_tenant_learns_nothing(stage: Stage, served: Callable[..., MCPServer]) -> None:
    handle, _ = masked(stage, "s", MINE)
    replace(stage, key=OTHERS).ask(agent(1))
    calls: list[Call] = [(name, {member: value, "session": "s"}) for name, member, value in (
        ("expand", "handle", handle), ("expand", "handle", "00000000"), ("search_memory", "query", "beds"),
    )]  # fmt: skip
    failed = answers(served("others"), *calls)
    assert [each[0] for each in failed] == [True, True, True]
    assert failed[0] == failed[1]
    ((is_error, why),) = answers(served("never-seen"), ("expand", {"handle": handle}))
    assert is_error
    assert "accepted" in why


def test_a_proxy_that_is_not_there_is_an_answer_too(served: Callable[..., MCPServer]) -> None:
    ((is_error, why),) = answers(served("mine", url="http://127.0.0.1:9"), ("expand", {"handle": "00000000"}))
    assert is_error
    assert "no proxy answers at http://127.0.0.1:9" in why


@pytest.mark.parametrize(
    ("variables", "words", "says"),
    [
        ({"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b"}, [], "--key-from names the one"),
        ({}, ["--key-from", "NO_SUCH_KEY"], "NO_SUCH_KEY, which is not set"),
    ],
)
def test_it_never_guesses_whose_key_is_meant(
    variables: dict[str, str],
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, key in variables.items():
        monkeypatch.setenv(name, key)
    code, _, err = run(capsys, "mcp", *words)
    assert code == 2
    assert says in err
