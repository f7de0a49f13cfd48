"""Clients that put files in front of each question, and move them to the end with the next one, as aider does."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support.redis_server import RedisServer
from tests.support.replies import completion
from tests.support.stage import Stage, count, proxy_with_sqlite, proxy_with_upstream, store_rows
from tests.support.transcripts import assistant, user
from tests.support.wire import Answer

WINDOW = 9_000
TURNS = 12

Message = dict[str, Any]


def files(version: int, words: int = 100) -> list[Message]:
    """What the client puts in front of its question: the files as they are now."""
    text = " ".join(f"line{version}x{each}" for each in range(words))
    return [
        user(
            f"I have *added these files to the chat*. *Trust this message as the true contents of these files!*\n{text}"
        ),
        assistant("Ok, any changes I propose will be to those files."),
    ]


def question(turn: int) -> Message:
    return user(f"Now do step {turn}, please.")


def reply(turn: int) -> str:
    """About 1,200 tokens."""
    return f"Step {turn} is done. " + " ".join(f"change{turn}x{each}" for each in range(300))


def finished(turns: int, sent_back: Callable[[int], str] = reply) -> list[Message]:
    """The examples that the client begins with, and the turns that are over."""
    examples = [user("Change get_factorial() to use math.factorial"), assistant("We need to modify app.py.")]
    return examples + [each for turn in range(turns) for each in (question(turn), assistant(sent_back(turn)))]


def request(turn: int, sent_back: Callable[[int], str] = reply) -> list[Message]:
    """The request of a turn: what is finished, the files, and the question."""
    system = {"role": "system", "content": "Act as an expert developer."}
    return [system, *finished(turn, sent_back), *files(turn), question(turn)]


def conversation(
    stage: Stage, sent_back: Callable[[int], str] = reply, headers: list[tuple[str, str]] | None = None
) -> list[Answer]:
    """The answers to all turns; each waits until what the one before has started is over."""
    answers = []
    for turn in range(TURNS):
        stage.upstream.reply(completion(reply(turn)))
        answers.append(stage.ask(request(turn, sent_back), headers or ()))
        stage.proxy.quiet()
    return answers


def header_values(answers: list[Answer], name: str) -> list[str | None]:
    return [answer.header(f"x-condenser-{name}") for answer in answers]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        if request.param == "redis":
            url = stack.enter_context(RedisServer()).url
        else:
            url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'store.db'}"
        settings: dict[str, Any] = {
            "store": {"url": url},
            "summarizer": {"model": "small"},
            "tenant": {"pepper": "pepper"},
        }
        yield stack.enter_context(proxy_with_upstream(window=WINDOW, **settings))


def condensed_in(answers: list[Answer]) -> list[str]:
    """The condensations in the views, each with the action that named it; a repetition must say `replayed`."""
    applied: list[str] = []
    for answer in answers:
        condensation = answer.condensation
        if condensation is None:
            continue
        action = "replayed" if condensation in applied else "condensed"
        assert answer.action == action
        applied.append(condensation)
    return list(dict.fromkeys(applied))


def test_a_client_that_moves_its_files_keeps_its_session_and_its_view(stage: Stage) -> None:
    answers = conversation(stage)
    assert 2 <= len(condensed_in(answers)) <= 4
    assert len(stage.summaries) <= 4
    assert set(header_values(answers, "session-source")) == {"derived"}
    assert len({each for each in header_values(answers, "session") if each and each.startswith("d")}) == 1
    assert set(header_values(answers, "branch")) <= {"main", "main+", "main++", "main+++", "main+4"}
    views = [each.json()["messages"] for each in stage.forwarded]
    for (before, after), answer in zip(pairwise(views), answers[1:], strict=True):
        # All but the files and the question.
        assert answer.action == "condensed" or after[: len(before) - 3] == before[:-3]


def test_where_it_rewrites_the_replies_too_its_forks_find_what_was_condensed(stage: Stage) -> None:
    answers = conversation(stage, lambda turn: f"{reply(turn)} (applied)")
    assert 2 <= len(condensed_in(answers)) <= 4
    assert len(stage.summaries) <= 4


def test_a_question_once_sent_with_a_reminder_is_recognised(stage: Stage) -> None:
    """aider adds the rules of its edit format to the last message, and sends the files anew when an edit has failed."""
    answers, done = [], finished(0)
    for turn in range(TURNS):
        asking, failed = [question(turn)], [question(turn), assistant(reply(turn)), user("It failed.")]
        for version, messages, text in ((turn, asking, reply(turn)), (100 + turn, failed, "Mended.")):
            reminded = [*messages[:-1], user(f"{messages[-1]['content']}\nUse SEARCH/REPLACE blocks.")]
            stage.upstream.reply(completion(text))
            answers.append(stage.ask([*done, *files(version), *reminded]))
            stage.proxy.quiet()
            assert files(version)[0] in stage.last_view
        done += [*failed, assistant("Mended.")]
    assert 2 <= len({*header_values(answers, "condensation")} - {None}) <= 5
    assert len(stage.summaries) <= 5


def test_files_that_fill_most_of_the_window_are_forwarded_whole() -> None:
    with proxy_with_upstream(window=WINDOW) as stage:
        for turn in range(TURNS):
            messages = [*request(turn)[:-3], *files(turn, 1_200), question(turn)]
            stage.upstream.reply(completion(reply(turn)))
            answer = stage.ask(messages)
            stage.proxy.quiet()
            assert stage.last_view[-3:] == messages[-3:]
            assert answer.headroom >= 0


def test_the_chain_index_grows_by_three_nodes_a_request_at_most(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with proxy_with_sqlite(path, window=WINDOW) as stage:
        sizes = []
        for turn in range(TURNS):
            stage.upstream.reply(completion(reply(turn)))
            stage.ask(request(turn))
            stage.proxy.quiet()
            sizes.append(store_rows(path)["index"])
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps[3:]) <= 3
    assert max(steps) <= 5  # where nothing is known yet, the places before the last questions count too


def exchanges_of(turns: Callable[[int], list[Message]]) -> list[int]:
    """How many exchanges with Redis each of the first turns has, once the conversation is stored."""
    with RedisServer() as server, Redis.from_url(server.url) as client:
        settings: dict[str, Any] = {"store": {"url": server.url}, "tenant": {"pepper": "pepper"}}
        with proxy_with_upstream(window=WINDOW, **settings) as stage:
            totals = []
            for turn in range(5):
                stage.upstream.reply(completion(reply(turn)))
                stage.ask(turns(turn))
                stage.proxy.quiet()
                totals.append(int(client.info("stats")["total_reads_processed"]))
    return [after - before for before, after in pairwise(totals)]


def test_moved_messages_cost_no_more_exchanges_with_redis() -> None:
    moved, unmoved = exchanges_of(request), exchanges_of(lambda turn: [*files(0), *finished(turn), question(turn)])
    assert moved[-1] <= unmoved[-1]
    assert sum(moved) <= sum(unmoved)


def test_a_conversation_that_only_drops_an_earlier_exchange_is_the_same_one() -> None:
    with proxy_with_upstream(window=WINDOW) as stage:
        long = [*finished(6), question(6)]
        stage.upstream.reply(completion(reply(6)))
        first = stage.ask(long).session
        shorter = [*finished(5), question(6), assistant(reply(6)), question(7)]
        assert stage.ask(shorter).session == first
        other = [*finished(5), question(6), assistant("Something else."), question(7)]
        assert stage.ask(other).session != first


def test_a_reply_that_an_agent_names_later_is_the_same_message() -> None:
    """Semantic Kernel sends an agent's name with its messages once the turn is over, not before."""
    with proxy_with_upstream(window=WINDOW) as stage:
        turn = [*finished(6), question(6)]
        first = stage.ask(turn).session
        named = [{**each, "name": "r"} if each["role"] == "assistant" else each for each in turn]
        later = stage.ask([*named, {**assistant("Done."), "name": "r"}, question(7)])
        assert later.session == first
        assert count({"messages": named}) > WINDOW // 2
