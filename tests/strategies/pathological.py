"""Texts on which a careless pattern or loop takes quadratic time, and the functions that have to read them."""

import json
from collections.abc import Callable, Mapping

from proxy.endpoints.chat import ANSWER
from proxy.http.sse import EventReader, Events
from proxy.overflow import recognise
from strategies.core import cards, ledger, rules, transcript, values
from strategies.core.effects import read_vote
from strategies.core.excerpt import cut_text
from strategies.core.history import break_fences
from strategies.core.ledger import find_facts, rank_facts
from strategies.core.parsing import normalized
from strategies.core.rules import latest
from strategies.core.summary import read_json_answer, read_plain_answer
from strategies.dynacontext import tagged
from strategies.extract import record
from strategies.memory import ranking
from strategies.memory.attribution import attribute_cards
from strategies.memory.block import appears_in as shown_before
from strategies.rule_record import body
from tests.support.transcripts import WORDS, assistant, message, user, view_of

PIECES = (
    *(
        ".",
        "!",
        "…",
        " ",
        "\n",
        "\t",
        "\r",
        "\x85",
        "1",
        "a",
        "A",
        "@",
        "-",
        "_",
        "/",
        "`",
        '"',
        "'",
        "[",
        "]",
        "(",
        "{",
    ),
    *(
        "<",
        "\\",
        ",",
        ":",
        "?",
        "。",
        "！",
        "，",
        "中",
        "的",
        "、",
        "あ",
        "\u0301",
        "e\u0301",
        "\ufdfa",
        "😀",
        "\u200b",
    ),
    *("1,", "1.", "1 ", "a.", "a@", "a-", "a_", "a/", "aB", "a1", "://", "http://a,", "0x1f ", "10 ms ", "#1", "$1,"),
    *(". ", '."', "? ", ",\n", "x ", "x\n", "中。", "- a\n", "> a\n", ":\n", "= ", " is", "2024-01-", "1 May ", "1月"),
    *("```", "```\n", "~~~\n", '\\"', "[x] ", "a: ", "never ", "Never a.\n", "use a\n", "please ", "I do not ", "不要"),
    *("instead of a ", "forget the ", "error: ", "Error:\n", "<summary>", "<memory>", "</memory>", "<memory>[", "[{"),
    *("<reasoning>", "<decision>", "<future_direction>", "<think>", "<message ", "[Ledger]\n", "exceed", "tokens> "),
    *("max_model_len", "1 tokens ", "maximum context length is "),
)
OPENINGS = ("", "see ", "```\n", "never ", '{"summary": "')
ENDING = "x:"


def _cards_of(text: str) -> list[cards.MemoryCard]:
    told = [{"content": text[: cards.LONGEST]}, {"content": f"no {text}"}]
    return list(read_plain_answer(f"<memory>{json.dumps(told)}</memory>").cards)


def _attributed(text: str) -> object:
    view = view_of([user(text), assistant(text)])
    return attribute_cards(_cards_of(text), view, view.items)


def _merged(*texts: str) -> object:
    kept = rules.Rules()
    for text in texts:
        kept.hear(text, rules.find_rules(text))
    return list(kept)


READERS: Mapping[str, Mapping[str, Callable[[str], object]]] = {
    "rules": {
        "standing": rules.find_rules,
        "merged": lambda text: _merged(text, text[::-1]),
        "statement": lambda text: (values.statement(text), values.correction(text), values.corrected(text, "7")),
        "is_chinese": lambda text: transcript.is_chinese(view_of([user(text)]).transcript),
    },
    "facts": {
        "exact": lambda text: list(find_facts(text)),
        "ranked": lambda text: rank_facts((), [text, text]),
        "parted": ledger.split_ledger,
        "latest": lambda text: latest(text.splitlines()),
        "joined": lambda text: ledger.append_ledger(text, ledger.Ledger((text,))),
        "ledger": lambda text: ledger.ledger(
            ledger.Ledger(),
            [message(user(text))],
            [message(user(text)), message(assistant(text))],
            ledger.LEDGER,
            WORDS,
        ),
    },
    "answers": {
        "read_json_answer": read_json_answer,
        "as_text": read_plain_answer,
        "tagged": tagged,
        "tagged within": lambda text: tagged(f"<summary>{text}</summary>"),
        "read_vote": read_vote,
        "unfenced": break_fences,
        "cut_text": lambda text: cut_text(text, 100, WORDS),
        "record": lambda text: record(
            view_of([user("Go."), assistant(text), user(text), user("And?")]), 3, 1_000, text.splitlines()
        ),
        "body": lambda text: body(message(user(text))),
    },
    "memory": {
        "plain": normalized,
        "terms": ranking.terms,
        "distinct": ranking.distinct,
        "width": ranking.width,
        "speaker": ranking.speaker,
        "dates": ranking.dates,
        "split": ranking.split,
        "standing": lambda text: shown_before([text]),
        "merged": lambda text: cards.distinct(_cards_of(text)),
        "index": lambda text: ranking.Index(ranking.message_entries("k", message(user(text)), 0)).search(text),
        "attributed": _attributed,
    },
    "replies": {
        "events": lambda text: list(EventReader().feed(f"data: {text}".encode())),
        "hidden calls": lambda text: list(Events().feed(f"data: {text}".encode())),
    },
    "overflow": {
        "text": lambda text: recognise(400, text.encode(), answer=ANSWER),
        "object": lambda text: recognise(400, json.dumps({"error": {"message": text}}).encode(), answer=ANSWER),
        "objects": lambda text: recognise(
            400, json.dumps([{"message": text[: len(text) // 12]}] * 12).encode(), answer=ANSWER
        ),
        "event": lambda text: recognise(200, f"data: {text}".encode(), answer=ANSWER),
    },
}


def _form(opening: str, piece: str) -> Callable[[int], str]:
    return lambda length: opening + piece * (length // len(piece)) + ENDING


FORMS: tuple[Callable[[int], str], ...] = (
    *(_form(OPENINGS[number % len(OPENINGS)], piece) for number, piece in enumerate(PIECES)),
    lambda length: "a" * 10 * length,
    lambda length: "Never do it.\n" * length,
)
"""Texts of a length: each piece repeated, behind each opening in turn; a long word; and many lines."""
