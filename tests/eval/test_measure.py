import gzip
from pathlib import Path

from eval.measure import load
from tests.eval.building import FACTS, QUESTIONS, dialogue_file, long_dialogue
from tests.support.transcripts import WORDS


def test_dialogues_are_read_with_their_questions(tmp_path: Path) -> None:
    (dialogue,) = load(dialogue_file(tmp_path, long_dialogue()), WORDS)

    assert [question.text for question in dialogue.questions] == list(QUESTIONS)
    assert {dialogue.transcript.chain[at].text for question in dialogue.questions for at in question.places} == set(
        FACTS.values()
    )


def test_a_compressed_file_is_read_too(tmp_path: Path) -> None:
    plain = dialogue_file(tmp_path, long_dialogue())
    packed = tmp_path / "dialogues.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert [each.id for each in load(packed, WORDS)] == ["d1"]


def test_evidence_is_counted_without_system_messages(tmp_path: Path) -> None:
    dialogue = long_dialogue()
    dialogue["messages"].insert(0, {"role": "system", "content": "Be brief."})
    for each in dialogue["qa"]:
        each["evidence"] = [at + 1 for at in each["evidence"]]

    (read,) = load(dialogue_file(tmp_path, dialogue), WORDS)

    assert {read.transcript.chain[at].text for question in read.questions for at in question.places} == set(
        FACTS.values()
    )


def test_dialogues_without_evidence_and_short_ones_are_left_out(tmp_path: Path) -> None:
    unanswered = long_dialogue(qa=[{"question": "?", "answer": None, "evidence": []}])
    short = long_dialogue(
        messages=[{"role": "user", "content": "hi"}], qa=[{"question": "?", "answer": None, "evidence": [0]}]
    )

    assert load(dialogue_file(tmp_path, unanswered, short, long_dialogue(qa=[])), WORDS) == []
