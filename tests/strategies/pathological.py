"""Texts on which a careless pattern or loop takes quadratic time, and the functions that have to read them."""

import json
from collections.abc import Callable, Mapping

from proxy.conversations.session import title_of
from proxy.http.sse import EventReader, Events
from proxy.protocols.chat import ANSWER
from proxy.servers import refusals
from strategies.core import cards, ledger, quotes, transcript
from strategies.core.actions import action, changes, subject
from strategies.core.covered import Covered, covered, ledger_of
from strategies.core.effects import read_vote
from strategies.core.excerpt import cut_text
from strategies.core.failures import failures
from strategies.core.findings import closing_in, other_names_in, said_in, users_names_in
from strategies.core.history import break_fences
from strategies.core.messages import ToolCall
from strategies.core.names import find_names, has_name, without_keys
from strategies.core.parsing import normalized
from strategies.core.rarity import Rarity, terms_of
from strategies.core.record import record
from strategies.core.summary import read_json_answer, read_plain_answer
from strategies.core.terms import distinct, terms, width
from strategies.core.units import units
from strategies.dynacontext import tagged
from strategies.memory import ranking
from strategies.memory.attribution import attribute_cards
from strategies.memory.block import appears_in as shown_before
from strategies.selection import body
from tests.support.transcripts import WORDS, assistant, call, message, tool, user, view_of

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
    *("error: ", "Error:\n", "a.py:1: ", "exit code 1 ", '{"a": ', "| a ", "<a>\n", "(a. B", "E.g. ", "(1) ", "a.B."),
    *("    a\n", "<summary>", "<memory>", "</memory>", "<memory>[", "[{"),
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


def _covered(text: str) -> Covered:
    """A conversation in which everybody says the text, and a tool is called with it and prints it."""
    calls = (call("c", "run", text), call("d", "run", {"command": text}))
    told = (assistant(text, *calls), tool("c", text), tool("d", text), user(text), assistant(text), user("And?"))
    view = view_of([user("Go."), user(text), *told])
    return covered(view, view.items[:7], 7, 1_000)


def _done(done: ToolCall) -> object:
    return changes(done, 2), action(done, subject(done), ("a-1",), frozenset(), changes=True, has_failed=False)


def _chosen(text: str) -> object:
    said = said_in(message(user(text)))
    ordered = quotes.quotes([(0, said), (1, said[::-1])], Rarity([terms_of(text)]))
    kept, _ = quotes.chosen(ordered, 10 * len(text), 10 * len(text), WORDS)
    return quotes.lines(kept)


READERS: Mapping[str, Mapping[str, Callable[[str], object]]] = {
    "said": {
        "units": units,
        "said": lambda text: (said_in(message(user(text))), closing_in(message(assistant(text)))),
        "quotes": _chosen,
        "terms": lambda text: Rarity([terms_of(text)]).score(terms_of(text)),
        "is_chinese": lambda text: transcript.is_chinese(view_of([user(text)]).transcript),
    },
    "told": {
        "names": lambda text: (list(find_names(text)), has_name(text), without_keys(text)),
        "names of lines": lambda text: (users_names_in(message(user(text))), other_names_in(message(tool("c", text)))),
        "failures": lambda text: failures(message(tool("c", text)), text, is_file=False),
        "actions": lambda text: _done(ToolCall("c", "run", text)),
        "values": lambda text: _done(ToolCall("c", "run", json.dumps({text: [text, {"a": text}]}))),
    },
    "records": {
        "parted": ledger.split_ledger,
        "dropped": lambda text: ledger.without(text, {"00000000"}),
        "titled": lambda text: title_of([message(user(text))]),
        "joined": lambda text: ledger.append_ledger(text, ledger.Ledger((text,))),
        "ledger": lambda text: ledger_of(_covered(text), ledger.LEDGER, WORDS),
        "record": lambda text: record(_covered(text), 1_000, WORDS, chinese=False),
    },
    "answers": {
        "read_json_answer": read_json_answer,
        "as_text": read_plain_answer,
        "tagged": tagged,
        "tagged within": lambda text: tagged(f"<summary>{text}</summary>"),
        "read_vote": read_vote,
        "unfenced": break_fences,
        "cut_text": lambda text: cut_text(text, 100, WORDS),
        "body": lambda text: body(message(user(text))),
    },
    "memory": {
        "plain": normalized,
        "terms": terms,
        "distinct": distinct,
        "width": width,
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
        "text": lambda text: refusals.read(400, text.encode(), answer=ANSWER),
        "object": lambda text: refusals.read(400, json.dumps({"error": {"message": text}}).encode(), answer=ANSWER),
        "objects": lambda text: refusals.read(
            400, json.dumps([{"message": text[: len(text) // 12]}] * 12).encode(), answer=ANSWER
        ),
        "event": lambda text: refusals.read(200, f"data: {text}".encode(), answer=ANSWER),
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
