"""The demo: its conversation, and what it shows."""

import json
from contextlib import redirect_stdout
from html import escape
from importlib.resources import files
from io import StringIO
from pathlib import Path

import pytest

from proxy.cli import FAILED, OK, USAGE, main
from proxy.commands.demo import first, is_planted, load
from proxy.commands.replaying.play import request_ends
from proxy.commands.replaying.recorded import Conversation
from proxy.protocols.chat import ChatCounter
from proxy.tokens.counter import Tokenizers

WINDOW = 3_072
REQUESTS = 26
SHORT = ["--window", str(WINDOW), "--requests", str(REQUESTS)]


def figures(output: str, label: str) -> list[str]:
    """The cells of a row in the last table: direct, trimmed, condensed."""
    (row,) = [line for line in output.splitlines() if line.strip().startswith(label)]
    return row.strip().removeprefix(label).split()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "demo.html"


@pytest.fixture(scope="module")
def output(page: Path) -> str:
    """What the demo prints with its default strategy."""
    with redirect_stdout(StringIO()) as printed:
        assert main(["demo", *SHORT, "--verbose", "--html", str(page)]) == OK
    return printed.getvalue()


def test_it_begins_with_its_verdict_in_eight_lines(output: str) -> None:
    lines = output.splitlines()
    assert lines[8].strip() == ""
    verdict = " ".join(" ".join(lines[:8]).split())
    assert verdict.startswith(
        f"With Condenser (mask+extract), {REQUESTS} of {REQUESTS} requests of a coding session fit"
    )
    assert "5 of 5 facts of its first turns still reach the model. Without it, request 15 has" in verdict
    assert "rescued 12 requests that did not fit" in verdict
    assert "tokens on requests that would have fitted anyway paid no calls of its own; " in verdict
    assert max(map(len, lines)) <= 100
    assert "It cannot show how good answers are." in " ".join(output.split())


def test_the_way_that_stops_does_not_look_cheapest(output: str) -> None:
    assert figures(output, "requests answered")[-3:] == [str(REQUESTS), "of", str(REQUESTS)]
    direct, of = figures(output, "all prompts, tokens")[:2]
    assert (int(direct.replace(",", "")) > 0, of) == (True, "(of")
    assert figures(output, "prompt of the last request, tokens")[1:3] == ["(too", "many)"]
    planted = figures(output, "facts of turns 1 to 3 that reach the model")
    assert planted == ["0", "of", "5", "1", "of", "5", "5", "of", "5"]
    assert figures(output, "a fact that only a tool told")[0] == "refused"


def test_requests_are_listed_only_if_they_are_asked_for(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"and the window {WINDOW:,}: a model server refuses it" in " ".join(output.split())
    assert "turn request    sent  direct | forwarded headroom action" in output
    assert "condensed: history was replaced anew." in " ".join(output.split())
    assert main(["demo", "--requests", "3"]) == OK
    assert "headroom" not in capsys.readouterr().out


def test_the_same_figures_are_told_as_json(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["demo", *SHORT, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"].split()) == (OK, output.partition("\n\n")[0].split())
    answered = " ".join(f"{way['requests'] - way['refused']} of {way['requests']}" for way in found["ways"])
    assert answered == " ".join(figures(output, "requests answered"))
    assert list(found["ways"][-1]["facts"].values())[:5] == [True] * 5


def test_the_page_draws_three_ways_and_the_window(output: str, page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.count('<path class="line') == 2 * 3
    assert f"window {WINDOW:,}" in text
    assert "direct, refused at request 15" in text
    assert escape(output.splitlines()[0]) in text
    assert "<td>26 of 26</td>" in text
    assert "<script" not in text


@pytest.mark.parametrize("protocol", ["messages", "responses"])
def test_it_shows_the_same_in_every_protocol(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--protocol", protocol, *SHORT]) == OK
    assert figures(capsys.readouterr().out, "facts of turns 1 to 3 that reach the model")[-3:] == ["5", "of", "5"]


def test_a_short_run_asks_the_same_whatever_the_machines_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["demo", "--requests", "3"]) == OK
    output = capsys.readouterr().out
    assert "So short a session would have fitted without it." in " ".join(output.split())
    assert figures(output, "facts of turns 1 to 3 that reach the model") == 3 * ["5", "of", "5"]
    assert figures(output, "a fact that only a tool told") == 3 * ["no"]
    monkeypatch.setenv("CONDENSER_UPSTREAM__BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("CONDENSER_STRATEGY", "off")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert main(["demo", "--requests", "3"]) == OK
    assert "mask+extract" in capsys.readouterr().out


def test_a_strategy_that_lets_requests_be_refused_fails_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--strategy", "off", *SHORT]) == FAILED
    printed = capsys.readouterr()
    assert printed.out.startswith(f"With Condenser (off), 14 of {REQUESTS} requests")
    assert "the demo failed: condensed: 12 requests were refused" in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategy", "nonsense"], "unknown strategy 'nonsense'"),
        (["--window", "12"], "must be at least 256"),
        (["--window", "many"], "'many' must be a whole number of at least 1"),
        (["--requests", "0"], "'0' must be a whole number of at least 1"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *arguments])
    assert stopped.value.code == USAGE
    assert words in capsys.readouterr().err


TRIED = 2_000


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return load()


def test_it_is_long_and_each_tool_message_answers_a_call(conversation: Conversation) -> None:
    counter = Tokenizers().for_model("gpt-4o", ChatCounter)
    sizes = [counter.message(message) for message in conversation.messages]
    assert sum(sizes) > 30_000
    assert max(sizes) < TRIED
    assert sum(message["role"] == "tool" for message in conversation.messages) > 100
    waiting: set[str] = set()
    for message in conversation.messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = {call["id"] for call in message.get("tool_calls", [])}


def test_planted_facts_stand_early_only_and_in_no_question(conversation: Conversation) -> None:
    later = json.dumps(conversation.messages[turn_ends(conversation)[2] :])
    planted = [question for question in conversation.questions if is_planted(question)]
    assert len(planted) == 5
    for question in planted:
        assert question.evidence[0] not in later
    (question,) = [each for each in conversation.questions if not is_planted(each)]
    found = [i for i, message in enumerate(conversation.messages) if question.reaches(str(message.get("content")))]
    assert conversation.messages[found[0]]["role"] == "tool"
    assert found[-1] < len(conversation.messages) // 10
    assert not [question for question in conversation.questions if question.evidence[0] in question.text]


def turn_ends(conversation: Conversation) -> list[int]:
    """For each turn the number of messages with which it ends."""
    starts = [i for i, message in enumerate(conversation.messages) if message["role"] == "user"]
    return [*starts[1:], len(conversation.messages)]


def test_its_beginning_is_a_conversation_too_and_its_licence_beside_it(conversation: Conversation) -> None:
    short = first(conversation, 5)
    assert len(list(request_ends(short))) == 5
    assert short.messages[-1]["role"] == "assistant"
    assert first(conversation, None) is conversation
    assert first(conversation, 10_000) is conversation
    notice = files("proxy").joinpath("demo", "NOTICE").read_text("utf-8")
    for words in ("badlogic/pi-mono", "83378aad7e74", "MIT License", "Copyright (c)", "Permission is hereby granted"):
        assert words in notice
