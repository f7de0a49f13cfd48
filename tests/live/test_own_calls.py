"""The proxy's own calls share a small server with its clients, and its model writes poor records."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from strategies import TABLE
from tests.live.llama import BOUND, CLIENT, IS_VLLM, MODEL, Message, history, llama, post, quick_llama, talk, tunnel
from tests.live.test_calibration import SAYS
from tests.live.turns import conversation
from tests.support.proxy import running_proxy
from tests.support.stage import controls, counter
from tests.support.wire import Answer

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

WAITS = 2.0  # the `inline_timeout` of these tests, seconds
SLACK = 2.0  # seconds that a busy machine may add to it
POOL_TURNS = 40
REWRITING = [name for name in TABLE if name != "off"]


def condensing(answer: Answer) -> float:
    """Seconds that the proxy took before it forwarded the request."""
    parts = dict(part.strip().split(";dur=") for part in str(answer.header("server-timing")).split(","))
    return float(parts["condense"]) / 1_000


@pytest.mark.parametrize("strategy", REWRITING)
def test_no_reply_waits_for_an_own_call_that_is_late(server: str, strategy: str) -> None:
    with (
        tunnel(server) as passing,
        running_proxy(passing.url, as_shipped=True, strategy=strategy, inline_timeout=WAITS) as proxy,
    ):
        # The first request has the proxy look at the server: it serves one request at a time, in a window of 1,024.
        talk(proxy.url, history(1), controls(session="s"))
        proxy.quiet(BOUND)
        for rounds, force in ((12, "true"), (13, None)):
            answer = talk(proxy.url, history(rounds), controls(session="s", force=force))
            assert answer.status == 200, answer
            assert condensing(answer) < WAITS + SLACK
    if IS_VLLM:  # it takes any number of requests at a time
        return
    of_clients = [call for call in passing.calls if not call.is_own]
    assert [call.beside for call in of_clients] == [0] * len(of_clients), passing.calls


def test_a_server_without_compaction_is_asked_for_one_once(server: str) -> None:
    asked = []
    with tunnel(server) as passing, running_proxy(passing.url, as_shipped=True, strategy="native+extract") as proxy:
        for rounds in (10, 11, 12):
            given = [
                {"type": "message", "role": each["role"], "content": each["content"]} for each in history(rounds)[1:]
            ]
            body = {"model": MODEL, "input": given, "max_output_tokens": 8, "user": CLIENT}
            answer = post(proxy.url, "/v1/responses", body, controls(session="s", window=1_024, force="true"))
            assert answer.status == 200, answer
            asked.append(sum(call.path.endswith("/compact") for call in passing.calls))
    assert asked[0] == asked[-1], passing.calls


@pytest.mark.skipif(IS_VLLM, reason="only llama.cpp splits a text into its tokens")
def test_the_limit_of_an_answer_is_in_the_servers_tokens() -> None:
    """A record as long as the prompt allows must not be cut short: for Chinese this server counts 2.6 times as many."""
    messages: list[Message] = [{"role": "system", "content": "请用中文规划菜地。"}]
    asks, says = SAYS["Chinese"]
    with (
        llama(n_ctx=2_048, n_parallel=1) as url,
        tunnel(url) as passing,
        running_proxy(passing.url, as_shipped=True, strategy="half-window", inline_timeout=WAITS) as proxy,
    ):
        for turn in range(12):
            messages.append({"role": "user", "content": asks.format(turn, turn * 7 % 11)})
            if turn in (1, 3, 5, 11):
                force = "true" if turn == 11 else None
                answer = talk(proxy.url, messages, controls(session="s", window=2_048, force=force))
                assert answer.status == 200, answer.body
            messages.append({"role": "assistant", "content": says.format(turn, turn * 7 % 11)})
        asked = next(json.loads(call.body) for call in passing.calls if call.is_own)
        words = int(re.findall(r"at most (\d+) words", json.dumps(asked["messages"]))[0])
        record = "".join(each["content"] for each in messages[1:])
        while counter().text(record) > words:
            record = record[:-1]
        tokens = post(url, "/tokenize", {"content": f"<summary>{record}</summary>"}).json()["tokens"]
    assert words < len(tokens) <= asked["max_completion_tokens"], (words, len(tokens))


@pytest.mark.parametrize("strategy", ["dynacontext", "half-window"])
def test_own_calls_end_no_reply_before_slots_that_share_one_pool(strategy: str) -> None:
    """The client always asks while a call of the proxy's own is under way, which would overfill the pool with it."""
    messages, _ = conversation(1)
    with (
        quick_llama(n_ctx=2_048, n_parallel=-1) as url,
        tunnel(url) as passing,
        running_proxy(passing.url, as_shipped=True, strategy=strategy, inline_timeout=WAITS) as proxy,
    ):
        for end in range(2, 2 * POOL_TURNS, 2):
            answer = talk(proxy.url, messages[:end], controls(session="s"), max_tokens=48, stream=True)
            assert answer.status == 200, answer.body
            assert b'"error"' not in answer.body, (end, answer.body)
            passing.meets_own()
    assert any(call.is_own for call in passing.calls)
    of_clients = [call for call in passing.calls if not call.is_own]
    assert len(of_clients) == POOL_TURNS - 1, "a request was refused and repeated"


def test_two_conversations_share_one_pool(pool: tuple[str, int]) -> None:
    url, window = pool
    full = window // 100  # rounds, of which two conversations overfill it
    with running_proxy(url, as_shipped=True) as proxy, ThreadPoolExecutor(2) as clients:

        def converse(name: str) -> list[Answer]:
            opening = {"role": "system", "content": f"You are the assistant of {name}."}
            return [
                talk(proxy.url, [opening, *history(rounds)[1:]], controls(session=name), max_tokens=48)
                for rounds in (full - 1, full)
            ]

        answers = [answer for each in clients.map(converse, ("Ines", "Omar")) for answer in each]
        assert [answer.status for answer in answers] == [200] * len(answers), [each.body for each in answers]
        last = talk(proxy.url, history(full + 1), controls(session="later"))
        assert (last.window, last.action) == (str(window), "passed")
