"""`replay --live` asks an upstream, by rule here, what it does next: within a budget, and with a report in any case."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proxy.commands.replaying.live import Purse, Stopped
from proxy.commands.replaying.recorded import Conversation, in_protocol
from proxy.protocols.replies import Usage
from strategies.core.economics import Prices
from tests.proxy.command_line import run
from tests.support import replies
from tests.support.messages_upstream import StrictMessages, tool_use
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply, ToolCall
from tests.support.responses_upstream import StrictResponses, function_call, reasoning
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

VIEW = "[Condensed history]"
SECRET = "sk-live-secret"
SCHEMA = {"type": "object", "required": ["path"], "properties": {"path": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": SCHEMA}}
Live = Callable[..., tuple[int, str, str]]


def session(name: str, rounds: int = 14) -> dict[str, Any]:
    """An agent that reads one file after the other."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You review code."},
        {"role": "user", "content": f"Review all of {name}. Never touch generated files."},
    ]
    for part in range(rounds):
        call = {"name": "read", "arguments": json.dumps({"path": f"src/{name}_{part}.py"})}
        calls = [{"id": f"c{part}", "type": "function", "function": call}]
        text = f"part {part} of {name}, invariant {part * 7919}. " * 40
        messages += [
            {"role": "assistant", "content": f"Now part {part}.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"c{part}", "content": text},
        ]
    messages.append({"role": "assistant", "content": f"All is reviewed, also src/{name}_0.py."})
    return {"id": name, "model": "scripted-1", "temperature": 0.2, "messages": messages, "tools": [TOOL]}


def dice(*of: object) -> int:
    """A number below 100 that is the same each time."""
    return int.from_bytes(blake2b("/".join(map(str, of)).encode(), digest_size=4).digest()) % 100


class Rule:
    """What the upstream does next: to read a file, another one for so many of a hundred views, and of all calls."""

    def __init__(self, seed: int = 0, differs: int = 0, noise: int = 0) -> None:
        self.seed, self.differs, self.noise, self.asked = seed, differs, noise, 0
        self.billed = 0
        self.fails: Callable[[int], Reply | None] = lambda nth: None

    def __call__(self, exchange: Exchange) -> Reply | None:
        if exchange.path != CHAT:
            return None
        self.asked += 1
        if failing := self.fails(self.asked):
            return failing
        text = exchange.body.decode()
        place = json.dumps(exchange.json()["messages"][-1])
        is_other = VIEW in text and dice(self.seed, place) < self.differs
        part = 2 if dice(self.seed, self.asked, "noise") < self.noise else int(is_other)
        call = ToolCall("read", json.dumps({"path": f"src/next_{part}.py"}))
        self.billed += (prompt := len(text) // 3) + 12
        return replies.stream(*replies.tool_call_chunks(call), replies.usage_chunk(prompt, 12))


@pytest.fixture
def rule() -> Rule:
    return Rule()


@pytest.fixture
def upstream(rule: Rule) -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as upstream:
        upstream.answer(rule)
        yield upstream


@pytest.fixture
def live(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Live:
    """Replays recorded sessions and asks the upstream: exit code, standard output and standard error."""
    monkeypatch.setenv("PROVE_KEY", SECRET)
    monkeypatch.setenv("CONDENSER_CONFIG", "")
    monkeypatch.setenv("CONDENSER_MARKS__MOST", "3000")
    monkeypatch.chdir(tmp_path)

    def asking(*options: str, sessions: Sequence[Mapping[str, Any]] | None = None) -> tuple[int, str, str]:
        given = [session(f"s{nth}") for nth in range(4)] if sessions is None else sessions
        (tmp_path / "talks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in given))
        words = ["--strategy", "mask+extract", "--window", "60000", "--live", upstream.base_url, *options]
        return run(capsys, "replay", "talks.jsonl", "--key-env", "PROVE_KEY", *words)

    return asking


def document(found: tuple[int, str, str]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(found[1])["live"]
    return read


def of(read: Mapping[str, Any], level: str) -> Mapping[str, Any]:
    return next(each for each in read["agreement"] if (each["of"], each["by"]) == ("mask+extract", level))


def test_a_view_that_changes_nothing_agrees(live: Live, rule: Rule, upstream: ScriptedUpstream) -> None:
    read = document(live("--json", "--sample", "10"))
    assert of(read, "action")["requests"] == 10
    assert of(read, "action")["sessions"] == 4
    assert (of(read, "tool")["view"], of(read, "action")["view"], of(read, "action")["noise"]) == (1.0, 1.0, 1.0)
    assert rule.asked == 30
    assert {each.header("authorization") for each in upstream.journal.to(CHAT)} == {f"Bearer {SECRET}"}
    bodies = [each.json() for each in upstream.journal.to(CHAT)]
    assert sum(VIEW in json.dumps(each["messages"]) for each in bodies) == 10
    assert all(each["tools"] == [TOOL] and each["stream"] and each["temperature"] == 0.2 for each in bodies)
    assert all(each["max_completion_tokens"] == 1024 for each in bodies)
    assert read["spent"] == [0.0, rule.billed]


@pytest.mark.parametrize(("seed", "differs", "noise"), [(1, 10, 0), (2, 10, 10), (3, 50, 5)])
def test_what_was_planted_is_found(live: Live, rule: Rule, seed: int, differs: int, noise: int) -> None:
    rule.seed, rule.differs, rule.noise = seed, differs, noise
    found = of(document(live("--json", "--sample", "40", sessions=[session(f"s{nth}") for nth in range(8)])), "action")
    calm = 1 - noise / 100
    same = calm**2 * (1 - differs / 100) + (1 - calm) ** 2
    worse = calm**2 + (1 - calm) ** 2 - same
    assert found["least"] <= same
    assert worse <= found["most"] < 1
    assert found["view"] == pytest.approx(same, abs=0.2)
    assert of(document(live("--json", "--sample", "40")), "tool")["view"] == 1.0


def test_the_report_says_what_it_shows_and_has_no_secret(live: Live, tmp_path: Path) -> None:
    code, out, _ = live("--html", "report.html", "--sample", "8")
    told = " ".join(out.split())
    assert code == 0
    assert re.search(r"mask\+extract +action +8 +4 +100\.0% \(at least \d+%\) +100\.0% +0\.0 +5\d", out)
    assert "4 sessions without a difference show 53 points" in told
    assert "mask+extract, condensed 1 x" in out
    assert "names of the history" in told
    assert "First token, median" in told
    page, results = ((tmp_path / name).read_text() for name in ("report.html", "condenser-live.ndjson"))
    assert "<h2>The next action</h2>" in page
    assert len(results.splitlines()) == 8
    assert not any(SECRET in text or "invariant" in text for text in (out, page, results))


def test_a_run_goes_on_where_another_ended(live: Live, rule: Rule, tmp_path: Path) -> None:
    (tmp_path / "condenser-live.ndjson").write_text('{"key": "of another version"}\n[]\nno line')
    first = document(live("--json", "--sample", "6"))
    again = document(live("--json", "--sample", "6"))
    assert (first["reused"], again["reused"], rule.asked) == (0, 6, 18)
    assert again["agreement"] == first["agreement"]
    assert again["spent"] == [0.0, 0]


@pytest.mark.parametrize("budget", [10, 100_000, 300_000])
def test_the_budget_is_never_exceeded(live: Live, rule: Rule, budget: int) -> None:
    code, out, _ = live("--json", "--budget", str(budget))
    read = document((code, out, ""))
    assert code == 1
    assert read["stopped"].endswith(" could be spent, which exceeds --budget")
    assert rule.billed == read["spent"][1] <= budget
    assert (rule.asked > 0) is (budget > 10)


@pytest.mark.parametrize("unit", [None, Prices(2.0, 0.2, 2.5, 10.0)], ids=["tokens", "money"])
def test_a_purse_holds_whatever_the_upstream_counts(unit: Prices | None) -> None:
    """It may count a token for each byte in one call and few in the next, or say nothing of them."""
    for seed in range(100):
        most = 5_000.0 if unit is None else 0.01
        purse = Purse(most, unit)
        with pytest.raises(Stopped):
            spend_all(purse, Random(seed))
        assert 0 < purse.spent[0 if unit else 1] <= most


def spend_all(purse: Purse, random: Random) -> None:
    while True:
        body = b"x" * random.randrange(40, 400)
        worst = purse.worst(body, 20)
        purse.check([worst])
        purse.pay(worst)
        counted = Usage(random.randrange(1, len(body) + 1), random.randrange(20))
        purse.settle(worst, random.choice([counted, None]))


def test_too_many_requests_are_waited_for_and_then_end_it(live: Live, rule: Rule) -> None:
    busy = replies.error(429, headers=[("retry-after", "0")])
    rule.fails = lambda nth: busy if nth in (2, 3) else None
    assert document(live("--json", "--sample", "2"))["failures"] == {}
    rule.fails = lambda nth: busy if nth > 12 else None
    code, out, _ = live("--json", "--sample", "12")
    read = document((code, out, ""))
    assert code == 1
    assert read["stopped"] == "3 requests in a row failed: the upstream answered 429"
    assert 2 <= len(read["measured"]) < 12
    rule.fails = lambda nth: None
    assert document(live("--json", "--sample", "12"))["reused"] == len(read["measured"])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (replies.hang_up(), "The upstream broke off the connection"),
        (replies.error(500), "the upstream answered 500"),
        (replies.stream(*replies.text_chunks(""), replies.usage_chunk(5, 1)), "the reply ended before an action"),
    ],
    ids=["broken", "failing", "empty"],
)
def test_a_broken_upstream_leaves_a_report(live: Live, rule: Rule, reply: Reply, reason: str) -> None:
    again = 1 if reply.headless else 0  # on a kept connection a request goes out twice
    rule.fails = lambda nth: reply if 5 <= nth <= 5 + again else None
    read = document(live("--json", "--sample", "4"))
    assert [name[: len(reason)] for name in read["failures"]] == [reason]
    assert (len(read["measured"]), read["stopped"]) == (3, "")
    rule.fails = lambda nth: reply
    code, out, _ = live("--sample", "12")
    assert code == 1
    assert f"Stopped: 3 requests in a row failed: {reason}" in " ".join(out.split())


def test_an_interrupt_leaves_a_report(live: Live, rule: Rule, upstream: ScriptedUpstream) -> None:
    gate = Signal("the end of the test")

    def waits(nth: int) -> Reply | None:
        if nth == 8:
            threading.Timer(0, lambda: signal.raise_signal(signal.SIGINT)).start()
        return replies.hang(gate) if nth == 8 else None

    rule.fails = waits
    code, out, _ = live("--json", "--sample", "8")
    gate.set()
    read = document((code, out, ""))
    assert (code, read["stopped"], len(read["measured"])) == (1, "interrupted", 2)
    rule.fails = lambda nth: None
    assert document(live("--json", "--sample", "8"))["reused"] == 2


def test_calls_without_tools_are_not_measurable_until_a_file_has_them(live: Live, rule: Rule, tmp_path: Path) -> None:
    bare = {key: value for key, value in session("bare").items() if key != "tools"}
    read = document(live("--json", sessions=[bare]))
    assert (read["unmeasurable"], read["measured"], rule.asked) == (["bare"], [], 0)
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    read = document(live("--json", "--sample", "2", "--tools", "tools.json", sessions=[bare]))
    assert (read["unmeasurable"], len(read["measured"])) == ([], 2)


def test_names_that_were_gone_are_told_with_those_that_were_read_again(live: Live) -> None:
    talk = session("far", 16)
    talk["messages"][-1]["content"] = "As rule QX-4711-Z of src/far_0.py says."
    talk["messages"][2]["content"] = "By rule QX-4711-Z I go on."
    read = document(live("--json", "--sample", "40", sessions=[talk]))
    assert read["needs"]
    assert all(each["again"] <= len(each["gone"]) <= each["used"] for each in read["needs"])


def body(name: str, protocol: str) -> dict[str, Any]:
    """A session as the body of a request in a protocol."""
    talk = session(name)
    made = in_protocol(Conversation(name, talk["messages"], talk["tools"]), protocol)
    thought = {"type": "thinking", "thinking": "Well.", "signature": "of another conversation"}
    for message in made.messages if protocol == "messages" else ():
        if message["role"] == "assistant":
            message["content"].insert(0, thought)
    listed = {made.endpoint.list_member: made.messages, **made.members}
    return {"id": name, "model": "claude-opus-4-8", "tools": made.tools, **listed}


@pytest.mark.parametrize("protocol", ["messages", "responses"])
def test_a_strict_server_of_each_protocol_takes_originals_and_views(live: Live, protocol: str) -> None:
    reading: dict[str, Any] = {"path": "src/next.py"}
    strict: StrictMessages | StrictResponses = (
        StrictMessages(lambda _: [tool_use("read", reading)])
        if protocol == "messages"
        else StrictResponses(lambda _: [reasoning("Well."), function_call("read", reading)])
    )
    with strict:
        options = ("--json", "--sample", "6", "--live", strict.base_url)
        read = document(live(*options, sessions=[body(f"s{nth}", protocol) for nth in range(3)]))
    assert (strict.refusals, read["failures"]) == ([], {})
    assert (of(read, "action")["requests"], of(read, "action")["view"]) == (6, 1.0)
    assert read["spent"][0] > 0
    asked = [each for each in strict.journal if each.method == "POST"]
    assert len(asked) == 18
    name = "x-api-key" if protocol == "messages" else "authorization"
    assert all((each.header(name) or "").endswith(SECRET) for each in asked)


def test_a_call_of_anthropics_that_is_cut_short_has_its_target(live: Live, upstream: ScriptedUpstream) -> None:
    def event(kind: str, **members: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()

    def cut(exchange: Exchange) -> Reply:
        call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
        part = "b" if VIEW in exchange.body.decode() else "a"
        piece = {"type": "input_json_delta", "partial_json": f'{{"path": "src/{part}.py", "te'}
        start = {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}
        events = [event("message_start", message=start), event("content_block_start", index=0, content_block=call)]
        events += [event("content_block_delta", index=0, delta=piece)]
        events += [event("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 4})]
        return replies.stream(*events, event("message_stop"), done=False)

    upstream.answer(cut)
    read = document(live("--json", "--sample", "2", sessions=[body("s", "messages")]))
    assert (of(read, "tool")["view"], of(read, "action")["view"], of(read, "action")["noise"]) == (1.0, 0.0, 1.0)


def test_nothing_is_sent_without_live(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(session("a")))
    options = ("--window", "4096", "--sample", "3", "--budget", "9")
    code, out, _ = run(capsys, "replay", str(tmp_path / "talk.json"), *options, "--json")
    assert (code, "live" in json.loads(out)) == (0, False)
    assert list(upstream.journal) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--live", "nowhere"], "--live: "),
        (["--key-env", "NO_SUCH_VARIABLE"], "--key-env: NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_wrong_option_is_said_before_anything_is_sent(live: Live, rule: Rule, options: list[str], says: str) -> None:
    code, _, err = live(*options)
    assert (code, rule.asked) == (2, 0)
    assert says in err
