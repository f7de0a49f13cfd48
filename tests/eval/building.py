"""Small dialogues to measure."""

import json
from pathlib import Path
from typing import Any

from eval.measure import Dialogue, load
from tests.support.transcripts import WORDS

TURNS = 80
FACTS = {20: "Hannah moves to Lisbon.", 60: "The cellar door is green.", 121: "Dmitri won the chess tournament."}
QUESTIONS = {"Where does Hannah move?": [20], "Which colour has the cellar door?": [60], "Who won at chess?": [121],
             "Where does Hannah move, and who won at chess?": [20, 121]}  # fmt: skip


def long_dialogue(**more: Any) -> dict[str, Any]:
    """A dialogue of 160 messages as the data has it: facts among idle talk."""
    idle = "We walked on along the river bank for an hour, number {0} of many, and nobody had much to say about it."
    messages = [
        {"role": ("user", "assistant")[at % 2], "content": FACTS.get(at) or idle.format(at)} for at in range(2 * TURNS)
    ]
    qa = [{"question": text, "answer": None, "evidence": evidence} for text, evidence in QUESTIONS.items()]
    return {"id": "d1", "lang": "en", "messages": messages, "qa": qa} | more


def dialogue_file(folder: Path, *dialogues: dict[str, Any]) -> Path:
    """A file with dialogues."""
    path = folder / "dialogues.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in dialogues), "utf-8")
    return path


def dialogues(folder: Path) -> list[Dialogue]:
    """The dialogue, read."""
    return load(dialogue_file(folder, long_dialogue()), WORDS)
