"""`condenser doctor` says what came in and why nothing was condensed, each with what to do, and exits 1 for a fault."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.running import noted
from tests.proxy.command_line import run
from tests.proxy.commands.test_running import DEFAULT, OTHER, serving
from tests.support import wire
from tests.support.admin_api import TOKEN
from tests.support.messages_upstream import MESSAGES
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.replies import error
from tests.support.responses_upstream import RESPONSES
from tests.support.stage import chat
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.usefixtures("elsewhere")

SONNET = "claude-sonnet-4-5"
LATER = 1e12  # seconds; when a proxy was started that is newer than any other
HELLO = [{"role": "user", "content": "hello"}]
Found = dict[str, dict[str, Any]]


def post(url: str, model: str, path: str = CHAT, members: Any = None, **headers: str) -> int:
    """The status of a request; `_` in the name of a header is `-`."""
    named = [("Authorization", "Bearer sk-x"), *((name.replace("_", "-"), value) for name, value in headers.items())]
    return wire.post_json(url, path, {"model": model, **(members or {"messages": HELLO})}, named).status


def findings(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Found]:
    code, out, _ = run(capsys, "doctor", "--json", *words)
    document = json.loads(out)
    assert document["ok"] is (code == 0)
    return code, {each["name"]: each for each in document["findings"]}


def of_proxy(proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> tuple[int, Found]:
    proxy.served()
    return findings(capsys, "--url", proxy.url, "--token", TOKEN)


def test_a_newcomer_learns_how_to_begin_and_which_proxies_run(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "No proxy answers at http://127.0.0.1:8484: connection refused" in out
    assert "         condenser serve --single-user\n" in out
    with serving(tmp_path / "store", "--upstream", upstream.base_url) as url:
        code, out, _ = run(capsys, "doctor")
        assert code == 1
        assert "wrong  No request to a model came in the last 24 hours.\n" in out
        for line in (f"OPENAI_BASE_URL={url}/v1 ", f"ANTHROPIC_BASE_URL={url} ", "codex -c openai_base_url="):
            assert f"         {line}" in out
        assert post(url, "gpt-4o", "/chat/completions") == 404
        assert "1 POST request in the last 24 hours got 404 at a path" in run(capsys, "doctor")[1]
        assert post(url, SONNET, CHAT) == 200
        told = run(capsys, "doctor")[1]
        code, found = findings(capsys, "--url", upstream.url)
        assert (code, found["no-proxy"]["lines"]) == (1, [f"condenser doctor --url {url}"])
        note = OTHER._replace(configured=DEFAULT, started=LATER, token=TOKEN)
        with running_proxy(upstream.url, admin={"token": TOKEN}) as newer, noted(note._replace(url=newer.url)):
            found = findings(capsys)[1]
    assert found["several"]["text"] == f"2 proxies of yours run here. This is about the one at {newer.url}."
    assert found["several"]["lines"] == [f"condenser doctor --url {url}"]
    assert "ok     1 request came in the last 24 hours: 1 by chat. None was condensed." in told
    assert "strategy mask+extract,\n       window 200,000 (bundled table), at most " in told
    assert all(len(line) <= 100 or str(tmp_path) in line for line in (out + told).splitlines())


def test_an_agent_that_compacts_by_itself_gets_the_recipe_first(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: dict[str, Any] = {"store": {"url": f"sqlite:///{tmp_path}/s.db"}, "admin": {"token": TOKEN}}
    with running_proxy(upstream.url, as_shipped=True, **kept) as proxy:
        assert post(proxy.url, SONNET, MESSAGES, x_claude_code_session_id="c") == 200
        proxy.served()
        code, out, _ = run(capsys, "doctor", "--url", proxy.url, "--token", TOKEN)
    with running_proxy(upstream.url, as_shipped=True, window=60_000, **kept) as proxy:
        found = findings(capsys, "--url", proxy.url, "--token", TOKEN)[1]
        assert "It has read no request since it started at " in found["restarted"]["text"]
        assert post(proxy.url, SONNET, MESSAGES, x_claude_code_session_id="c") == 200
        assert "recipe" not in of_proxy(proxy, capsys)[1]
    assert code == 0
    assert out.startswith("note   Claude Code compacts by itself near the end of its window.")
    assert f'match = "{SONNET}"\n         economy = "auto"\n' in out
    assert "by --economy auto" in out
    assert out.endswith("\nNothing is wrong.\n")


def test_each_cause_for_which_nothing_is_condensed_is_told_apart(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_proxy(upstream.url, strategy="recent", admin={"token": TOKEN}) as proxy:
        post(proxy.url, "nobody-knows-it")
        post(proxy.url, "gpt-4o", x_condenser_strategy="off")
        post(
            proxy.url,
            "gpt-4o",
            members={"messages": chat(40)},
            x_condenser_strategy="observe:recent",
            x_condenser_window="2048",
        )
        post(proxy.url, "gpt-4o", RESPONSES, {"input": "go on", "previous_response_id": "resp_1"})
        post(proxy.url, "gpt-4o")
        code, found = of_proxy(proxy, capsys)
        post(proxy.url, "gpt-4o", members={"messages": chat(40)}, x_condenser_window="2048")
        condensed = of_proxy(proxy, capsys)[1]
    assert code == 0
    assert "window unknown" in found["window-unknown"]["text"]
    assert found["window-unknown"]["lines"] == ["[[models]]", 'match = "nobody-knows-it"', "window = 32768"]
    assert "strategy off, window 128,000" in found["off"]["text"]
    assert "window 2,048 (request)" in found["observe"]["text"]
    assert "1 would have been condensed" in found["observe"]["text"]
    assert "1 request could not be condensed: server-state" in found["server-state"]["text"]
    assert "Condensing begins at 10" in found["below-marks"]["text"]
    assert "None was condensed. Why not, or not more: " in found["arrived"]["text"]
    assert "forgets them when it stops" in found["memory-store"]["text"]
    assert "1 went with a condensed history" in condensed["condensed"]["text"]


def test_failures_are_told_by_who_failed_and_normal_ones_are_none(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_proxy(upstream.url, admin={"token": TOKEN}) as proxy:
        assert post(proxy.url, "gpt-4o") == 200
        upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        assert wire.request(proxy.url, "GET", RESPONSES, None, upgrade).status == 426
        assert of_proxy(proxy, capsys)[0] == 0
        upstream.answer(lambda _exchange: error(401))
        assert post(proxy.url, "gpt-4o") == 401
        assert post(proxy.url, "gpt-4o", x_condenser_strategy="no-such") == 400
        code, found = of_proxy(proxy, capsys)
    assert code == 1
    assert found["status_401"]["text"] == "The upstream answered 401 to 1 of 3 requests (33%)."
    assert "a valid key" in found["status_401"]["remedy"]
    assert found["error_invalid_request_error"]["level"] == "wrong"
    upstream_faults = [name for name in found if name.startswith(("status_", "error_"))]
    assert len(upstream_faults) == 2


def test_a_store_that_does_not_work_and_a_token_that_is_missing_are_faults(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_proxy(upstream.url, store={"url": "redis://127.0.0.1:1/0"}, admin={"token": TOKEN}) as proxy:
        code, found = findings(capsys, "--url", proxy.url, "--token", TOKEN)
    assert code == 1
    assert found["store"]["text"].startswith("Sessions cannot be kept in redis://127.0.0.1:1/0: store-unavailable.")
    assert "because the store does not answer" in found["hidden"]["text"]
    with running_proxy(upstream.url, admin={"token": TOKEN}) as proxy:
        code, found = findings(capsys, "--url", proxy.url)
        assert (code, found["hidden"]["remedy"][:12]) == (1, "give --token")
        code, found = findings(capsys, "--url", proxy.url, "--token", TOKEN, "--hours", "500")
        assert (code, found["hidden"]["remedy"]) == (1, "give --hours from 1 to 192.")
