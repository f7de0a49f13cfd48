"""LiteLLM's own proxy with its guardrail `headroom`, whose service is `POST /v1/compress`: 40 turns of an agent."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.guides import ADDRESS, blocks
from tests.support import wire
from tests.support.ports import free_port
from tests.support.processes import end
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.redis_server import await_true
from tests.support.stage import agent, count
from tests.support.upstream import ScriptedUpstream
from tests.test_docs import DOCS

PAGE = DOCS / "guides" / "compress.md"
GATEWAY = Path(sys.prefix) / "gateway" / "bin" / "python"
PATH, KEY, NOWHERE = "/v1/compress", "sk-0123456789abcdef", "http://127.0.0.1:9"
RUN = "from litellm.proxy.proxy_cli import run_server; run_server()"
PATIENCE = 120  # seconds; LiteLLM takes five to start, and more on a busy machine
TURNS, WINDOW = 40, 8_192
Message = Mapping[str, Any]
pytestmark = [
    pytest.mark.skipif(not GATEWAY.exists(), reason="LiteLLM's proxy is NOT TESTED: `make test` installs it"),
    pytest.mark.timeout(400),
]


def settings(upstream: str, compress: str) -> dict[str, Any]:
    """Those of the guide, with three guardrails instead of one: where the service does not answer, one is closed."""
    (block,) = [each for each in blocks(PAGE) if each.language == "yaml" and "guardrail: headroom" in each.text]
    read: dict[str, Any] = yaml.safe_load(block.text.replace(ADDRESS, compress))
    read["model_list"][0]["litellm_params"] |= {"api_base": upstream, "api_key": "sk-upstream"}
    (given,) = read["guardrails"]
    given["litellm_params"]["default_on"] = False
    down = {**given["litellm_params"], "api_base": NOWHERE}
    closed = {**down, "unreachable_fallback": "fail_closed"}
    read["guardrails"] += [
        {"guardrail_name": name, "litellm_params": params} for name, params in (("open", down), ("closed", closed))
    ]
    return read | {"general_settings": {"master_key": KEY}, "litellm_settings": {"telemetry": False}}


@contextmanager
def litellm(folder: Path, given: Mapping[str, Any]) -> Iterator[str]:
    """LiteLLM's proxy with these settings; nothing of it leaves this machine."""
    file, port = folder / "litellm.yaml", free_port()
    file.write_text(yaml.safe_dump(dict(given)))
    own = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(folder), "NO_PROXY": "*"}
    command = [str(GATEWAY), "-c", RUN, "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "litellm.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **own}, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            await_true(lambda: is_up(url, process), f"LiteLLM's proxy at {url}", PATIENCE)
            yield url
        finally:
            end(process)


def is_up(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"LiteLLM's proxy ended with {process.returncode}"
    try:
        return wire.request(url, "GET", "/health/liveliness").status == 200
    except (OSError, HTTPException):
        return False


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Proxy, ScriptedUpstream]]:
    folder = tmp_path_factory.mktemp("litellm")
    with (
        ScriptedUpstream() as upstream,
        running_proxy(upstream.url, as_shipped=True, window=WINDOW) as proxy,
        litellm(folder, settings(upstream.base_url, proxy.url)) as url,
    ):
        yield url, proxy, upstream


def asked(url: str, messages: Sequence[Message], guardrail: str) -> tuple[int, Any]:
    body = json.dumps({"model": "gpt-4o", "messages": messages, "guardrails": [guardrail]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + CHAT, body, headers), timeout=PATIENCE) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def turns(number: int) -> list[Message]:
    """An agent's list as it is when its user speaks for the `number`th time, after two calls each time."""
    spoken: list[Message] = agent(2 * number, lines=24)[:1]
    steps = agent(2 * number, lines=24)[2:]
    for turn in range(number):
        said = {"role": "assistant", "content": f"Door {turn} is fixed: its hinge had come loose."}
        spoken += [{"role": "user", "content": f"Fix door {turn}."}, *steps[4 * turn : 4 * turn + 4], said]
    return [*spoken, {"role": "user", "content": f"Fix door {number}."}]


def test_forty_turns_reach_the_model_short_and_each_list_begins_as_the_one_before(
    gateway: tuple[str, Proxy, ScriptedUpstream],
) -> None:
    url, proxy, upstream = gateway
    before: list[Message] = []
    steps = 0
    for number in range(TURNS):
        messages = turns(number)
        status, headers = asked(url, messages, "condenser")
        assert status == 200, headers
        sent = upstream.journal.to(CHAT)[-1].json()["messages"]
        assert [each["role"] for each in sent] == [each["role"] for each in messages]
        for given, forwarded in zip(messages, sent, strict=True):
            assert given["role"] == "tool" or forwarded.get("content") == given["content"]
        assert count({"messages": sent}) < WINDOW
        steps += sent[: len(before)] != before
        before = sent
    assert headers["x-litellm-applied-guardrails"] == "condenser"
    assert count({"messages": messages}) > 2 * WINDOW
    assert 1 <= steps <= 8
    served = proxy.journal.to(PATH)
    assert len(served) >= TURNS - 1
    assert {each.status for each in served} == {200}
    assert served[-1].json().get("config") == {"mode": "ccr"}


@pytest.mark.parametrize(("guardrail", "status"), [("open", 200), ("closed", 502)])
def test_where_the_service_does_not_answer_its_fallback_decides(
    gateway: tuple[str, Proxy, ScriptedUpstream], guardrail: str, status: int
) -> None:
    url, _, upstream = gateway
    messages = turns(3)
    answered, said = asked(url, messages, guardrail)
    assert answered == status, said
    if status == 200:
        sent = upstream.journal.to(CHAT)[-1].json()["messages"]
        assert [each.get("content") for each in sent] == [each["content"] for each in messages]
