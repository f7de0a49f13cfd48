from pathlib import Path

import pytest

from eval.arms import ARMS, Case, block_of, cases_of, condensed, found_by, newest, told
from tests.eval.building import QUESTIONS, dialogues
from tests.support.transcripts import WORDS


def cases(folder: Path) -> list[Case]:
    return list(cases_of(dialogues(folder)[0], WORDS, (8,)))


def test_trimming_keeps_the_end_and_memory_finds_what_was_before(tmp_path: Path) -> None:
    for case in cases(tmp_path):
        assert not case.evidence <= ARMS["trimmed"][1](case)
        assert case.evidence <= ARMS["inject"][1](case)
        assert case.evidence <= ARMS["search"][1](case)


def test_block_and_search_have_no_more_tokens_than_they_are_given(tmp_path: Path) -> None:
    for case in cases(tmp_path):
        content, used = block_of(case, 120, set())
        assert 0 < used <= 120
        assert WORDS.text(content) < used
        assert WORDS.text(found_by(case, 200, set())) < 200


def test_a_message_is_told_only_with_its_place_and_role(tmp_path: Path) -> None:
    case, *_ = cases(tmp_path)

    assert told(case, "[21] user:\n> Hannah moves to Lisbon.") == {20}
    assert told(case, "[22] user:\n> Hannah moves to Lisbon.") == set()


def test_the_newest_messages_fit_the_view_and_have_no_gap(tmp_path: Path) -> None:
    case, *_ = cases(tmp_path)

    kept = sorted(newest(case, case.tokens))
    assert kept == list(range(kept[0], len(case.dialogue.tokens)))
    assert sum(case.dialogue.tokens[at] for at in kept) <= case.tokens


@pytest.mark.parametrize("name", ["recent", "mask+half-window", "extract"])
def test_a_strategy_brings_a_dialogue_to_its_goal(tmp_path: Path, name: str) -> None:
    (dialogue,) = dialogues(tmp_path)

    view = condensed(dialogue, name, 800, 4_000, WORDS)

    assert view.tokens - view.items[-1].message.tokens <= 800


def test_every_question_is_asked_once_for_each_share(tmp_path: Path) -> None:
    asked = list(cases_of(dialogues(tmp_path)[0], WORDS, (4, 16)))

    assert [case.share for case in asked] == [4, 16] * len(QUESTIONS)
