"""What a request becomes when more is made of it than came: bounded before anything is made, and its memory held."""

import gzip
import json
from pathlib import Path
from typing import Any

from tests.support import wire
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT
from tests.support.replies import completion
from tests.support.upstream import ScriptedUpstream

LINE = "Keep the tests green, and push nothing to main before Friday. "
LARGE = 300_000  # characters of a message, which take a thousandth of that where they are packed


def body(*texts: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": each} for each in texts]}).encode()


def ask(url: str, data: bytes, **controls: str) -> wire.Answer:
    named = [(f"X-Condenser-{name.replace('_', '-')}", value) for name, value in controls.items()]
    headers = [*wire.JSON, ("Authorization", "Bearer k"), *named]
    return wire.request(url, "POST", CHAT, gzip.compress(data), [*headers, ("Content-Encoding", "gzip")])


def forwarded(upstream: ScriptedUpstream) -> Any:
    sent = upstream.journal.to(CHAT)[-1].body
    return json.loads(gzip.decompress(sent) if sent.startswith(b"\x1f") else sent)


def test_an_appended_history_is_never_larger_than_a_body_may_be(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": {"url": f"sqlite:///{tmp_path}/s.db"}, "limits": {"body": 1_000_000}}
    text = LINE * (LARGE // len(LINE))
    with ScriptedUpstream() as upstream:
        upstream.reply(*[completion("Yes.")] * 5)
        with running_proxy(upstream.url, **settings) as proxy:
            found = [ask(proxy.url, body(text), Session="s", History="append").status for _ in range(5)]
        assert found == [200, 200, 200, 413, 413]
        with running_proxy(upstream.url, **settings) as proxy:  # which has cached nothing
            refused = ask(proxy.url, body("go on" * 40_000), Session="s", History="append")
            assert (refused.status, refused.json()["error"]["code"]) == (413, "body_too_large")
            assert ask(proxy.url, body("go on"), Session="s", History="append").status == 200
        assert max(len(each.body) for each in upstream.journal.to(CHAT)) < 1_000_000


def test_a_history_that_is_too_large_to_be_supplied_leaves_the_request_as_it_came(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": {"url": f"sqlite:///{tmp_path}/s.db"}, "limits": {"body": 1_000_000}}
    text = LINE * (LARGE // len(LINE))
    talk = [
        {"role": role, "content": f"{role} {n}: {text[:60_000]}"} for n in range(5) for role in ("user", "assistant")
    ]
    newest = [{"role": "user", "content": "And now?"}]

    def sent(messages: list[dict[str, str]]) -> bytes:
        return json.dumps({"model": "m", "messages": messages}).encode()

    with ScriptedUpstream() as upstream:
        upstream.reply(*[completion("Yes.")] * 3)
        with running_proxy(upstream.url, **settings) as proxy:
            assert ask(proxy.url, sent([*talk, *newest]), Session="s").status == 200
        with running_proxy(upstream.url, **settings) as proxy:
            assert ask(proxy.url, sent([*talk[-4:], *newest]), Session="s").status == 200
        assert len(forwarded(upstream)["messages"]) == 11
        small = {**settings, "limits": {"body": 400_000}}
        with running_proxy(upstream.url, **small) as proxy:
            assert ask(proxy.url, sent([*talk[-4:], *newest]), Session="s").status == 200
        assert len(forwarded(upstream)["messages"]) == 5
