"""What stands beside the list of a request: marks and headers of its body, and members that bind the list."""

import json
from typing import Any

import pytest

from tests.support import replies, wire
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.stage import Stage, body_of, chat, controls, count, proxy_with_upstream
from tests.support.wire import Answer

MARK = b"\xef\xbb\xbf"
SIGNATURE = "Credential=AKIA0/20261128/us-east-1/bedrock/aws4_request, SignedHeaders=host;x-amz-date, Signature=00"
SIGNED = [("Authorization", f"AWS4-HMAC-SHA256 {SIGNATURE}")], [("Signature-Input", 'sig=("content-digest")')]
DIGESTS = [("Content-Digest", "sha-256=:AA==:"), ("Content-MD5", "AA=="), ("Digest", "sha-256=AA==")]


def test_a_body_with_a_byte_order_mark_is_read_and_keeps_it() -> None:
    with proxy_with_upstream() as stage:
        short, long = (MARK + body_of(chat(rounds)) for rounds in (1, 40))
        assert stage.post(short, controls(session="s")).action == "passed"
        assert stage.upstream.journal.only().body == short
        for _ in range(2):  # read as a whole, and through the cache
            assert stage.post(long, controls(session="s")).action in ("condensed", "replayed")
            sent = stage.forwarded[-1].body
            assert sent.startswith(MARK)
            assert len(json.loads(sent)["messages"]) < len(chat(40))
        assert stage.post(MARK + MARK + body_of(chat(1))).status == 400


# -- headers that describe the body --------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", SIGNED)
def test_a_signed_body_is_never_rewritten(signature: list[tuple[str, str]]) -> None:
    def asked(stage: Stage, body: bytes, *headers: tuple[str, str]) -> Answer:
        return wire.request(stage.proxy.url, "POST", CHAT, body, [*wire.JSON, *signature, *headers])

    with proxy_with_upstream() as stage:
        signed = body_of(chat(12), condenser={"force": True})
        answer = asked(stage, signed)
        assert (answer.status, answer.action, answer.reason) == (200, "bypassed", "signed-body")
        assert stage.upstream.journal.only().body == signed
        assert asked(stage, signed, *controls(dry_run="true")).status == 400
    with proxy_with_upstream(upstream={"api_key": "sk-1"}) as stage:  # the signature does not go on
        assert asked(stage, body_of(chat(40))).action == "condensed"


def test_digests_of_the_body_leave_with_a_changed_one() -> None:
    with proxy_with_upstream() as stage:
        for rounds, kept in ((1, True), (40, False)):
            stage.ask(chat(rounds), [*controls(session="s"), *DIGESTS])
            sent = stage.forwarded[-1]
            assert [sent.header(name) is not None for name, _ in DIGESTS] == [kept] * 3


def test_digests_leave_too_where_only_what_is_asked_of_the_proxy_leaves() -> None:
    body: dict[str, Any] = {"model": "m", "input": "Go on.", "previous_response_id": "resp_1"}
    with proxy_with_upstream() as stage:
        for more, kept in (({}, True), ({"condenser": {"session": "s"}}, False)):
            headers = [*DIGESTS, ("Idempotency-Key", "key"), ("Authorization", "Bearer k")]
            answer = wire.post_json(stage.proxy.url, RESPONSES, {**body, **more}, headers)
            assert (answer.status, answer.action) == (200, "bypassed")
            sent = list(stage.upstream.journal)[-1]
            assert "condenser" not in sent.json()
            assert [sent.header(name) is not None for name, _ in DIGESTS] == [kept] * 3
            assert (sent.header("idempotency-key") == "key") == kept


def test_each_body_has_an_idempotency_key_of_its_own() -> None:
    seen: dict[str, bytes] = {}

    def strict(exchange: Exchange) -> Reply | None:
        if seen.setdefault(exchange.header("idempotency-key") or "", exchange.body) != exchange.body:
            return replies.error(409, "This key was used with another body.")
        tokens = count(exchange.json())
        return replies.overflow(2_048, tokens) if tokens > 2_048 else None

    key = [("Idempotency-Key", "k" * 250)]
    with proxy_with_upstream(window=None) as stage:
        stage.upstream.answer(strict)
        assert [stage.ask(chat(40), key).status for _ in range(2)] == [200, 200]
        keys = [each.header("idempotency-key") or "" for each in stage.forwarded]
        # The second time the window is known, and the view is the same.
        assert keys[0] == key[0][1]
        assert keys[1] == keys[2] != keys[0]
        assert max(map(len, keys)) <= 255


# -- the word that a JSON object needs -----------------------------------------------------------------------------

RESPONSES = "/v1/responses"
WANTS: dict[str, dict[str, Any]] = {
    CHAT: {"response_format": {"type": "json_object"}},
    RESPONSES: {"text": {"format": {"type": "json_object"}}},
}


@pytest.mark.parametrize("path", WANTS)
@pytest.mark.parametrize("says", ["user", "system", "long", "nobody"])
def test_a_message_with_the_word_json_stays_where_a_json_object_is_wanted(path: str, says: str) -> None:
    told = {"user": "Could I have that as JSON?", "long": "As JSON, " + "please " * 2_000}.get(says, "Go on.")
    list_member = "messages" if path == CHAT else "input"

    def asked(stage: Stage, rounds: int, **more: Any) -> list[dict[str, Any]]:
        list_ = [*chat(1), {"role": "assistant", "content": "It is about a ship."}, {"role": "user", "content": told}]
        list_ = [*list_, *chat(rounds)[1:]]
        if says == "system":
            list_ = [{"role": "system", "content": "You write JSON."}, *list_]
        body = json.dumps({"model": "m", list_member: list_, **more}).encode()
        headers = [*wire.JSON, ("Authorization", "Bearer k"), *controls(session="s", strategy="recent")]
        answer = wire.request(stage.proxy.url, "POST", path, body, headers)
        assert (answer.status, answer.action) == (200, "condensed")
        sent: list[dict[str, Any]] = list(stage.upstream.journal)[-1].json()[list_member]
        assert len(sent) < len(list_)
        return sent

    with proxy_with_upstream() as stage:
        first = asked(stage, 30, **WANTS[path])
        assert any(each["content"] == told for each in first) == (says == "user")
        assert len(first) > 2
        again = asked(stage, 50, **WANTS[path])
        if says == "user":  # at the same place
            assert again[:2] == first[:2]
    if says == "user":
        with proxy_with_upstream() as stage:
            assert all(each["content"] != told for each in asked(stage, 30))
