"""The vendor's own compaction as a strategy: what was thought before it stays valid, and nothing promised is lost."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.http import test_responses as tests_responses
from tests.http.test_bound_reasoning import Thinker, revert
from tests.http.test_messages import HEADERS, RULE, TOOLS, Agent, Json, is_own, reader
from tests.support import replies, wire
from tests.support.admin_api import TOKEN
from tests.support.messages_upstream import MESSAGES, StrictMessages, error
from tests.support.prefixes import canonical
from tests.support.proxy import Proxy, proxy_before, running_proxy
from tests.support.redis_server import RedisServer
from tests.support.responses_upstream import StrictResponses
from tests.support.stage import controls
from tests.support.strict_compaction import BETA, blocks_of
from tests.support.strict_messages import blocks

WINDOW = 32_000
ACTION, REASON = "x-condenser-action", "x-condenser-reason"
THINKS = {"thinking": {"type": "adaptive"}}
NATIVE: dict[str, Any] = {"strategy": "native", "window": WINDOW, "admin": {"token": TOKEN}}


@contextmanager
def before(upstream: StrictMessages, **settings: Any) -> Iterator[tuple[StrictMessages, Proxy]]:
    with proxy_before(upstream, **{**NATIVE, **settings}) as pair:
        yield pair


def vendor(**more: Any) -> StrictMessages:
    return StrictMessages(reader, **{"window": WINDOW, "compacts": True, **more})


def lists(upstream: StrictMessages) -> list[list[Json]]:
    """What the upstream got for the client, request by request."""
    return [body["messages"] for each in upstream.journal.to(MESSAGES) if "compaction" not in (body := each.json())]


def head_of(messages: list[Json]) -> str:
    return next((str(block["signature"]) for _, _, block in blocks_of(messages)), "")


def thoughts(messages: list[Json]) -> list[str]:
    found = (block for message in messages for block in blocks(message["content"]))
    return [block["thinking"] for block in found if block["type"] == "thinking"]


def assert_no_thought_was_lost(sent: Sequence[list[Json]], own: Sequence[str]) -> None:
    """Each list begins with the bytes of the one before it until the next compaction, which keeps all after its cut."""
    for earlier, later in pairwise(sent):
        if head_of(earlier) == head_of(later):
            assert [*map(canonical, later)][: len(earlier)] == [*map(canonical, earlier)]
    for each in sent:
        kept = thoughts(each)
        assert kept == list(own[own.index(kept[0]) :][: len(kept)]) if kept else each[0]["role"] == "user"


def test_forty_rounds_keep_all_thinking_and_each_rule_behind_every_compaction() -> None:
    with before(vendor()) as (upstream, proxy):
        agent = Agent(proxy.url, more=THINKS)
        agent.messages.append({"role": "assistant", "content": "Which file?"})
        agent.messages.append({"role": "user", "content": "parser.py. Always answer in one line."})
        for _ in range(40):
            agent.turn()
            proxy.quiet()
        sent = lists(upstream)
        assert upstream.refusals == []
        assert len({head_of(each) for each in sent}) > 2
        assert_no_thought_was_lost(sent, thoughts(agent.messages))
        assert {RULE, "parser.py"} <= {word for word in (RULE, "parser.py") if word in json.dumps(sent[-1])}
        assert "Always answer in one line." in json.dumps(sent[-1])
        # The client's own length of a reply would bound the summary and what is thought before it.
        assert {body["max_tokens"] for body in upstream.compactions} != {1_000}
        betas = [exchange.header("anthropic-beta") for exchange in upstream.journal.to(MESSAGES)]
        assert betas[0] is None
        assert betas[-1] == BETA


def test_it_is_the_same_on_two_replicas_and_after_a_restart() -> None:
    with RedisServer() as redis, vendor() as upstream:
        settings = {**NATIVE, "store": {"url": redis.url}, "tenant": {"pepper": "p" * 32}}
        agent = Agent("", more=THINKS)
        for _ in range(2):
            with running_proxy(upstream.url, **settings) as one, running_proxy(upstream.url, **settings) as other:
                for turn in range(16):
                    asked = (one, other)[turn % 2]
                    agent.url = asked.url
                    agent.turn()
                    asked.quiet()
        assert upstream.refusals == []
        assert any(map(head_of, lists(upstream)))
        assert_no_thought_was_lost(lists(upstream), thoughts(agent.messages))


def until_condensed(agent: Agent, upstream: StrictMessages, proxy: Proxy, most: int = 40) -> None:
    for _ in range(most):
        agent.turn()
        proxy.quiet()
        if head_of(lists(upstream)[-1]):
            return
    raise AssertionError("nothing was compacted")


@pytest.mark.parametrize("compacts", [False, None], ids=["refuses it", "answers as if it were a turn"])
def test_an_upstream_without_it_teaches_that_once(compacts: bool | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "proxy"), before(vendor(compacts=compacts)) as (upstream, proxy):
        agent = Agent(proxy.url, more=THINKS)
        actions = []
        for _ in range(24):
            actions.append(agent.turn().header(ACTION))
            proxy.quiet()
        asked = [body for each in upstream.journal.to(MESSAGES) if "compaction" in (body := each.json())]
    assert len(asked) == 1
    assert "condensed" in actions
    assert [record for record in caplog.messages if "preparing a condensation" in record] == []
    assert len([record for record in caplog.messages if "offers no compaction" in record]) == 1


@pytest.mark.parametrize(
    "reply",
    [
        replies.json_reply({"type": "message", "content": [], "stop_reason": "max_tokens", "usage": {}}),
        replies.json_reply(error("compaction_unavailable: try again", "overloaded_error"), status=529),
        replies.json_reply(error("model: claude-opus-4-8", "not_found_error"), status=404),
        replies.json_reply(error("mcp_servers: Extra inputs are not permitted"), status=400),
    ],
    ids=["empty", "overloaded", "another thing is missing", "another member is refused"],
)
def test_what_is_no_word_about_compaction_teaches_nothing(reply: replies.Reply) -> None:
    with before(vendor()) as (upstream, proxy):
        upstream.failing.append(reply)
        agent = Agent(proxy.url, more=THINKS)
        until_condensed(agent, upstream, proxy)
        assert len(upstream.compactions) >= 2


def test_a_compaction_that_its_maker_cannot_read_any_more_is_left_out_in_the_same_request() -> None:
    with before(vendor()) as (upstream, proxy):
        agent = Agent(proxy.url, more=THINKS)
        until_condensed(agent, upstream, proxy)
        upstream.account = "another"
        answer = agent.turn()
        assert answer.status == 200
        assert answer.header(REASON) == "compaction-refused"
        refused, mended = (head_of(each) for each in lists(upstream)[-2:])
        assert refused != mended
        agent.turn()
        assert len(upstream.refusals) == 1


def test_a_revert_takes_what_was_thought_behind_it_along() -> None:
    with before(vendor(window=None)) as (upstream, proxy):
        agent = Thinker(proxy.url, more=THINKS)
        while not head_of(lists(upstream)[-1] if agent.answers else []):
            agent.ask(window=WINDOW)
            proxy.quiet()
        agent.ask(window=WINDOW)
        behind = thoughts(agent.messages)[-1]
        revert(proxy)
        agent.ask(window=200_000)
        sent = lists(upstream)[-1]
        assert not head_of(sent)
        assert behind not in thoughts(sent)
        assert upstream.refusals == []


def test_a_session_may_leave_it_and_come_back_and_another_family_never_gets_it() -> None:
    with before(vendor()) as (upstream, proxy):
        agent = Agent(proxy.url, more=THINKS)
        until_condensed(agent, upstream, proxy)
        # Another family of models cannot read it: it gets the original messages, condensed by rules.
        other = controls(strategy="mask+extract")
        body = {**agent.body(), "model": "other-1", "thinking": None}
        assert wire.post_json(proxy.url, MESSAGES, body, [*HEADERS, *other]).status == 200
        assert not head_of(lists(upstream)[-1])
        for strategy in ("mask+extract", "native"):
            force = controls(strategy=strategy, force="true")
            answer = wire.post_json(proxy.url, MESSAGES, agent.body(), [*HEADERS, *force])
            assert (answer.status, answer.header(ACTION)) == (200, "condensed")
            assert bool(head_of(lists(upstream)[-1])) is (strategy == "native")
            for _ in range(4):  # what the upstream has read since is there to be compacted
                agent.turn()
                proxy.quiet()
        assert upstream.refusals == []


def test_memory_finds_what_the_compaction_covers() -> None:
    def script(body: Any) -> Any:
        return f"Part {len(body['messages'])} is done." if not is_own(body) else "<summary>Much.</summary>"

    secret = "The vault code of the depot in Oslo is 4711-QX."
    with before(
        StrictMessages(script, window=WINDOW, compacts=True), memory={"default": "inject"}, background={"mode": "off"}
    ) as (upstream, proxy):
        said: list[Json] = [{"role": "user", "content": "We plan a trip."}, {"role": "assistant", "content": secret}]
        for turn in range(12):
            said.append({"role": "user", "content": f"Consider route {turn}. " + "hills and rivers " * 600})
            said.append({"role": "assistant", "content": f"Route {turn} is fine."})
        said.append({"role": "user", "content": "What is the vault code of the depot in Oslo?"})
        body = {"model": "claude-opus-4-8", "max_tokens": 500, "tools": TOOLS, "messages": said}
        answer = wire.post_json(proxy.url, MESSAGES, body, [*HEADERS, *controls(session="m")])
        assert (answer.status, answer.header(ACTION)) == (200, "condensed")
        sent = lists(upstream)[-1]
        assert head_of(sent)
        assert "4711-QX" in json.dumps(sent)
        *ours, question = blocks(sent[-1]["content"])
        assert question == {"type": "text", "text": said[-1]["content"]}
        assert "[Condensed history]" in json.dumps(ours)
        assert sent[-2] == said[-2]


# -- Responses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", [(), ("endpoint",)], ids=["by the endpoint", "by the trigger"])
def test_no_reasoning_is_dropped_in_ninety_rounds_of_responses_and_one_record_stands(lacks: Any) -> None:
    with proxy_before(StrictResponses(tests_responses.reader, window=WINDOW, lacks=lacks), **NATIVE) as (
        upstream,
        proxy,
    ):
        agent = tests_responses.Agent(proxy.url)
        transformed = []
        for _ in range(90):
            transformed += tests_responses.response_in(agent.turn()).get("input_transformations", [])
            proxy.quiet()
        views = [body["input"] for body in tests_responses.client_bodies(upstream) if not is_trigger(body["input"])]
        assert upstream.refusals == []
        assert transformed == []
        compacted = [each for each in views if any(item.get("type") == "compaction" for item in each)]
        assert len({json.dumps(heads(each)) for each in compacted}) >= 9
        assert {json.dumps(each).count("[Condensed history]") for each in compacted} == {1}
        for earlier, later in pairwise(views):
            if heads(earlier) == heads(later):
                assert later[: len(earlier)] == earlier
        assert "Never touch main.py." in json.dumps(views[-1])
        assert len(developers(views[-1])) == len(developers(agent.items[: len(agent.items)])) - is_newest(agent.items)


def test_in_responses_a_question_stays_last_behind_what_we_add() -> None:
    with proxy_before(StrictResponses(tests_responses.reader, window=WINDOW), **NATIVE) as (upstream, proxy):
        agent = tests_responses.Agent(proxy.url)
        newest: list[
            tuple[list[Json], Json, list[Json]]
        ] = []  # what a view that has a head for the first time ends with, by the client and by us
        for _ in range(60):
            last = agent.items[-1]
            agent.turn()
            proxy.quiet()
            sent = tests_responses.client_bodies(upstream)[-1]["input"]
            if heads(sent) and heads(sent) not in [known for known, *_ in newest]:
                newest.append((heads(sent), last, sent))
        questions = [(last, sent) for _, last, sent in newest if last.get("role") == "user"]
        assert questions, "no head was new when the client asked a question"
        for last, sent in questions:
            assert sent[-1] == last
            record = next(i for i, item in enumerate(sent) if "[Condensed history]" in json.dumps(item))
            assert sent.index(heads(sent)[-1]) < record
            assert {item["role"] for item in sent[record:]} == {"user"}
            assert not any(item in agent.items for item in sent[record:-1] if item != agent.items[0])


def heads(items: list[Json]) -> list[Json]:
    return [item for item in items if item.get("type") == "compaction"]


def is_trigger(items: list[Json]) -> bool:
    return bool(items[-1].get("type") == "compaction_trigger")


def developers(items: list[Json]) -> list[Json]:
    return [item for item in items if item.get("role") == "developer"]


def is_newest(items: list[Json]) -> bool:
    """Whether a developer item came after the last request."""
    return items[-1].get("role") == "developer"
