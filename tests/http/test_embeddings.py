"""Memory that is ranked by meaning too: vectors are made once a reply has left, and never hold anything up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.test_judging import TURNS, WINDOW, shown
from tests.http.test_memory_injection import FACT, FORCE, INJECT, blocks, diary, ending
from tests.http.test_search_memory import FOUND, views
from tests.support import replies
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.searching import TOOL, answered, search
from tests.support.signals import Signal
from tests.support.stage import Stage, asked, chat, is_vote, on_file, staged, vote

PATH = "/v1/embeddings"
MEANT = "Wo hängt der Schlüssel fürs Gewächshaus?"  # shares no word with the fact that answers it
QUICK = {"embeddings_model": "embed-1", "embeddings_search_wait": 10}


def vector(text: str) -> list[float]:
    """Two texts about the key point the same way, and no others."""
    return [1.0, 0.0, 0.1] if "key hangs" in text or "Schlüssel" in text else [0.0, 1.0, len(text) % 7 / 70]


def embeddings(exchange: Exchange, tokens: int = 0) -> Reply | None:
    """The vectors that are asked for, at so many tokens, by default one for each."""
    if exchange.path != PATH:
        return None
    texts: Sequence[str] = exchange.json()["input"]
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    return replies.json_reply({"object": "list", "data": data, "usage": replies.usage(tokens or len(texts), 0)})


@contextmanager
def remembering(memory: Any, **settings: Any) -> Iterator[Stage]:
    """A stage on which a fact was condensed away, in a session that uses the memory and is at rest."""
    with staged(strategy="recent", memory=memory, **settings) as stage:
        stage.upstream.answer(embeddings)
        stage.ask(diary(12), [*asked(session="s"), FORCE, TOOL])
        stage.proxy.quiet()
        assert FACT not in str(stage.last_view)
        yield stage


def inputs(stage: Stage) -> list[list[str]]:
    return [each.json()["input"] for each in stage.upstream.journal.to(PATH)]


def found_by(stage: Stage, query: str) -> str:
    """What a search of the model gets."""
    stage.upstream.reply(answered(None, search(query), streamed=False), answered(FOUND, streamed=False))
    stage.ask(ending(diary(12), "Well?"), [*asked(session="s"), TOOL])
    return str(views(stage)[-1][-1]["content"])


def test_a_search_finds_what_is_meant_though_no_word_is_the_same() -> None:
    with remembering(QUICK) as stage:
        assert FACT in found_by(stage, MEANT)
        assert inputs(stage)[-1] == [MEANT]


def test_without_a_model_nothing_is_asked_and_words_rank_alone() -> None:
    with remembering({}) as stage:
        assert FACT not in found_by(stage, MEANT)
        assert FACT in found_by(stage, "greenhouse key")
        assert inputs(stage) == []


def test_each_passage_is_asked_for_once_newest_first_with_the_callers_credential() -> None:
    with remembering(QUICK) as stage:
        found_by(stage, MEANT)
        stage.proxy.quiet()
        passages = [text for each in inputs(stage) if each != [MEANT] for text in each]
        assert len(passages) == len(set(passages))
        assert passages.index("Write down day 3.") < passages.index(FACT)
        calls = stage.upstream.journal.to(PATH)
        assert {each.header("authorization") for each in calls} == {f"Bearer {stage.key}"}
        assert {each.json()["model"] for each in calls} == {"embed-1"}


@pytest.mark.parametrize(("wait", "is_found"), [(0, False), (10, True)], ids=["by-default", "with-a-wait"])
def test_a_block_is_ranked_by_meaning_only_where_it_may_wait_for_that(wait: int, is_found: bool) -> None:
    with remembering({**QUICK, "embeddings_inject_wait": wait}) as stage:
        stage.ask(ending(diary(12), MEANT), [*asked(session="s"), INJECT])
        assert any(FACT in str(each["content"]) for each in blocks(stage)) is is_found
        assert ([MEANT] in inputs(stage)) is is_found


def test_a_model_that_is_not_there_costs_meaning_only_and_is_not_asked_again() -> None:
    with staged(strategy="recent", memory=QUICK) as stage:
        stage.upstream.answer(lambda exchange: replies.error(404) if exchange.path == PATH else None)
        for _ in range(2):
            stage.ask(diary(12), [*asked(session="s"), FORCE, TOOL])
            stage.proxy.quiet()
        assert FACT in found_by(stage, "greenhouse key")
        assert len(inputs(stage)) == 1


def test_a_model_that_was_still_loading_is_asked_again_after_the_next_reply() -> None:
    with staged(strategy="recent", memory=QUICK) as stage:
        loading = iter([replies.error(500, "loading model")])
        stage.upstream.answer(lambda exchange: next(loading, embeddings(exchange)) if exchange.path == PATH else None)
        for _ in range(2):
            stage.ask(diary(12), [*asked(session="s"), FORCE, TOOL])
            stage.proxy.quiet()
        assert FACT in found_by(stage, MEANT)


def test_a_query_that_gets_no_vector_in_its_time_is_ranked_by_words() -> None:
    with remembering({**QUICK, "embeddings_search_wait": 0.05}) as stage:
        silent = replies.hang(Signal("the end"))
        stage.upstream.answer(lambda exchange: silent if exchange.path == PATH else None)
        assert FACT in found_by(stage, "greenhouse key")


def test_vectors_and_votes_spend_one_allowance_which_the_session_tells(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"memory": QUICK, "background": {"allowance": 0.0}}
    with on_file(tmp_path / "c.db", strategy="dynacontext", window=WINDOW, **settings) as stage:
        stage.upstream.answer(
            lambda exchange: embeddings(exchange, WINDOW) or (vote("NO") if is_vote(exchange) else None)
        )
        for rounds, headers in (
            (TURNS, asked(session="s", strategy="recent", force="true")),
            (TURNS + 1, asked(session="s", strategy="dynacontext")),
        ):
            stage.ask(chat(rounds), [*headers, TOOL])
            stage.proxy.quiet()
        assert stage.votes == []
        session = shown(stage, tmp_path)
        assert session["judging"]["last_skip_reason"] == "allowance"
        assert session["totals"]["embedding_tokens"] == session["totals"]["own_tokens"] == WINDOW


@pytest.mark.parametrize("header", ["X-Condenser-No-Store", "X-Condenser-Dry-Run"])
def test_nothing_of_a_request_that_leaves_no_trace_is_sent_to_the_model(header: str) -> None:
    with remembering({**QUICK, "embeddings_inject_wait": 10}) as stage:
        before = len(inputs(stage))
        stage.ask(ending(diary(12), "A secret."), [*asked(session="s"), INJECT, (header, "true")])
        stage.proxy.quiet()
        assert len(inputs(stage)) == before


def test_with_background_calls_off_there_are_no_vectors() -> None:
    with remembering(QUICK, background={"mode": "off"}) as stage:
        assert FACT in found_by(stage, "greenhouse key")
        assert inputs(stage) == []
