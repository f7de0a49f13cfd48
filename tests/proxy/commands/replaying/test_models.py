"""Replays that ask real models: which calls are made, what they cost, and where a bound on that stops them."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from proxy.settings import CONFIG_VARIABLE
from tests.proxy.commands.replaying.test_play import questions_and_answers
from tests.support.recording import Exchange
from tests.support.replies import completion, error
from tests.support.stage import MORE
from tests.support.upstream import ScriptedUpstream

SUMMARY = f"<summary>The user asked many questions, and each was answered because of this. {MORE}</summary>"
VOTE = "<reasoning>The stage is not over.</reasoning><decision>NO</decision>"
PRICES = "[[models]]\nmatch = 'm'\nwindow = 1024\nprices = { input = 1000.0, output = 1000.0 }\n"


def answer(exchange: Exchange) -> Any:
    return completion(VOTE if "Vote now" in exchange.json()["messages"][-1]["content"] else SUMMARY)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two recorded conversations, and settings with prices."""
    talks, settings = tmp_path / "talk.jsonl", tmp_path / "condenser.toml"
    talks.write_text("".join(json.dumps({"messages": questions_and_answers(turns)}) + "\n" for turns in (20, 16)))
    settings.write_text(PRICES)
    monkeypatch.setenv(CONFIG_VARIABLE, str(settings))
    return str(talks)


def replay(recorded: str, *more: str) -> int:
    return main(["replay", recorded, "--model", "m", "--json", *more])


def test_an_addressed_summarizer_gets_its_name_and_key(
    recorded: str, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_SUMMARIZER__API_KEY", "sk-own")
    upstream.answer(answer)
    assert replay(recorded, "--strategy", "half-window", "--summarizer-url", upstream.base_url) == 0
    found = json.loads(capsys.readouterr().out)
    asked = upstream.journal.to()
    assert {exchange.json()["model"] for exchange in asked} == {"m"}
    assert {exchange.header("authorization") for exchange in asked} == {"Bearer sk-own"}
    assert (found["summarizer"], found["judge"], found["warnings"]) == (upstream.base_url, "scripted", [])
    assert found["strategies"][1]["own_calls"] == len(asked) > 0
    assert found["strategies"][1]["own"] > 0


def test_judges_at_an_address_vote_while_summaries_are_scripted(
    recorded: str, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answer(answer)
    assert replay(recorded, "--strategy", "dynacontext", "--judge-url", upstream.base_url) == 0
    judged = json.loads(capsys.readouterr().out)["strategies"][1]
    assert judged["votes"] > 0
    assert judged["yes_share"] == 0.0
    assert all("Vote now" in exchange.json()["messages"][-1]["content"] for exchange in upstream.journal.to())


def test_a_cost_bound_leaves_out_unfinished_conversations(
    recorded: str, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answer(answer)
    asks = ("--strategy", "half-window", "--summarizer-url", upstream.base_url)
    assert replay(recorded, *asks, "--max-cost", "0.001") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conversations"] == 0
    assert found["warnings"] == ["stopped by --max-cost: the conversations after that are left out."]
    assert upstream.journal.to() == []


def test_failed_calls_are_told_with_their_reason(
    recorded: str, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answer(lambda _: error(500))
    assert replay(recorded, "--strategy", "half-window", "--summarizer-url", upstream.base_url) == 0
    assert "calls to a model failed: http-error" in json.loads(capsys.readouterr().out)["warnings"][0]


def test_a_cost_bound_needs_prices_and_an_address_a_model(
    recorded: str, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--summarizer-url", upstream.base_url]
    assert main(["replay", recorded, *url]) == 2
    assert "needs the name of a model" in capsys.readouterr().err
    assert main(["replay", recorded, *url, "--model", "unheard-of", "--max-cost", "1"]) == 2
    assert "--max-cost needs the prices of unheard-of" in capsys.readouterr().err
