"""The settings of docs/internals/faithful.md: what the proxy adds to the source documents is off, and they condense.

That the algorithms are the documents' is tested in `tests/strategies/differential`; here, that the settings lead there.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.strategies.differential import ports
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import SUMMARY, agent, chat, controls, is_vote, proxy_with_upstream, summary, vote

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "faithful.md").read_text("utf-8")
SETS = {
    title: tomllib.loads(text)
    for title, text in re.findall(r"^## (.+?)$.*?```toml\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
}


def answer(exchange: Exchange) -> Reply:
    if is_vote(exchange):
        return vote("YES")
    is_rolling = '"memory"' in exchange.body.decode() or "JSON" in exchange.body.decode()
    return summary(json.dumps({"summary": SUMMARY, "memories": []}) if is_rolling else f"<summary>{SUMMARY}</summary>")


def test_the_original_mechanism_votes_at_the_documents_turns_and_replaces_without_end() -> None:
    requests = 26
    with proxy_with_upstream(window=32_768, answers=answer, **SETS["DynaContext, the original mechanism"]) as stage:
        voted, replaced, seen = [], [], 0
        for request in range(1, requests + 1):
            asked = stage.ask(agent(request - 1, lines=60), controls(session="s"))
            stage.proxy.quiet()
            if asked.trigger == "judge":
                replaced.append(request)
            if len(stage.votes) > seen:
                voted.append(request)
            seen = len(stage.votes)
    due = ports.first_votes(1, replaced, requests)
    assert len(replaced) > 5
    # No vote is paid for where a YES could change nothing: in the first turns, before there is enough to record.
    assert voted == [request for request in due if request >= voted[0]]
    assert voted[0] <= 4


def test_each_document_has_its_settings() -> None:
    assert [known["strategy"] for known in SETS.values()] == [
        *("dynacontext", "dynacontext", "semantic", "rolling", "half-window")
    ]


@pytest.mark.parametrize("title", SETS)
def test_a_replacement_is_what_the_model_wrote_and_nothing_else(title: str) -> None:
    settings: dict[str, Any] = {**SETS[title]}
    if settings["strategy"] == "semantic":
        settings["semantic"] = {**settings["semantic"], "max_size": 24}
    with proxy_with_upstream(window=8_192, answers=answer, **settings) as stage:
        actions = []
        for rounds in range(1, 26):
            actions.append(stage.ask(chat(rounds), controls(session="s")).action)
            stage.proxy.quiet()
        assert "condensed" in actions
        texts = [str(each["content"]) for each in stage.last_view]
        (replacement,) = [text for text in texts if SUMMARY in text]
        assert replacement.endswith(SUMMARY)
        assert "[Ledger]" not in "".join(texts)
        if settings["strategy"] != "rolling":
            assert not any(each.get("name") == "memory_context" for each in stage.last_view)
        assert bool(stage.votes) == (settings["strategy"] == "dynacontext")
        if settings["strategy"] == "half-window":
            plan = stage.ask(chat(25), controls(session="s", dry_run="true")).json()["plan"]["half-window"]
            assert (plan["boundaryAdjustmentType"], plan["boundaryAdjustmentDelta"]) == ("exact", 0)
        if settings.get("dynacontext", {}).get("mode") == "refer":
            before = stage.last_view[texts.index(replacement) - 1]
            assert (before["role"], before["content"]) == ("assistant", "")
