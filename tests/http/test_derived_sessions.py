"""Conversations without an id: recognised by their chain, forked where they part, not stored while they are small."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.replies import completion, stream, text_chunks
from tests.support.stage import EMPTY, WINDOW, Stage, chat, controls, proxy_with_sqlite, store_rows

USER = {"role": "user", "content": "And now?"}


def session_of(stage: Stage, messages: list[Any], **members: Any) -> tuple[str | None, str | None]:
    """Session and action of a request without an id."""
    answer = stage.ask(messages, **members)
    assert answer.header("x-condenser-session-source") == "derived"
    return answer.session, answer.action


THOUGHT = "<think>The wall gives shade at noon.</think>\n"
REPLY = f"{THOUGHT}Bed 12: tomatoes, in the shade of the wall."
WITH_CONTEXT = [*chat(12)[:-1], {"role": "user", "content": "Context: soil. And what of bed 12?"}]
SENT_BACK = {
    "as it was": {"role": "assistant", "content": REPLY},
    "as parts": {"role": "assistant", "content": [{"type": "text", "text": REPLY}]},
    "with members of the SDK": {"role": "assistant", "content": REPLY, "refusal": None, "annotations": []},
    "without its thinking": {"role": "assistant", "content": REPLY.removeprefix(THOUGHT)},
}


@pytest.mark.parametrize("streamed", [False, True], ids=["in one piece", "streamed"])
@pytest.mark.parametrize("reply", SENT_BACK.values(), ids=SENT_BACK.keys())
def test_a_reply_identifies_a_rewritten_last_message(stage: Stage, reply: dict[str, Any], streamed: bool) -> None:
    stage.upstream.reply(stream(*text_chunks(REPLY)) if streamed else completion(REPLY))
    first, _ = session_of(stage, WITH_CONTEXT, stream=streamed)
    assert session_of(stage, [*chat(12), reply, USER]) == (first, "replayed")


def test_a_derived_session_does_not_answer_to_its_id(stage: Stage) -> None:
    session, _ = session_of(stage, chat(12))
    answer = stage.ask(chat(13), controls(session=session))
    assert (answer.header("x-condenser-session-source"), answer.action) == ("X-Condenser-Session", "condensed")


@pytest.mark.parametrize(
    ("window", "most", "small", "large"),
    [
        (WINDOW, 0, WINDOW // 4 - 60, WINDOW // 4 + 60),
        (1_000_000, 10_000, 2_941 - 60, 2_941 + 60),
        (None, 0, 2_050 - 60, 2_050 + 60),
        (None, 200_000, 1_600, 2_050 + 60),  # far below every mark it is estimated by its length
    ],
)
def test_a_conversation_is_stored_from_a_quarter_of_its_window_on(
    window: int | None, most: int, small: int, large: int, tmp_path: Path
) -> None:
    with proxy_with_sqlite(tmp_path / "s.db", window=window, marks={"most": most}) as stage:
        session_of(stage, [{"role": "user", "content": "word " * small}])
        assert store_rows(tmp_path / "s.db") == EMPTY
        session, _ = session_of(stage, [{"role": "user", "content": "word " * large}])
        assert store_rows(tmp_path / "s.db") == {"sessions": 1, "records": 0, "index": 1}
        assert (session or "").startswith("d")


def test_a_small_conversation_that_was_condensed_is_stored_all_the_same(tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "s.db", window=100_000) as stage:
        answer = stage.ask(chat(12), controls(force="true"))
        assert answer.action == "condensed"
        assert store_rows(tmp_path / "s.db")["records"] == 1
        assert session_of(stage, chat(13)) == (answer.session, "replayed")


def test_a_strategy_does_not_stick_to_a_derived_session(stage: Stage) -> None:
    stage.ask(chat(12), controls(strategy="extract"))
    assert stage.ask(chat(13)).strategy == "mask+half-window"
