"""Generated agent histories: the same ones every time, shaped like recorded coding sessions.

Sizes follow what recorded sessions of coding agents have (tokens: results 46 in the median, 105, 450 and 2,100 at
the 75th, 90th and 99th percentile; replies 37, 75, 180 and 760; four rounds a turn), so that the share of results
that a strategy would cut, and of files that are read twice, is about theirs.
"""

import json
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

ROUNDS_PER_TURN = 4
FILES = 40

_TEXT = (
    "the parser returns early when a header is missing so every caller checks for None before it reads fields "
    "self.assertEqual(response.status_code, 200) def load(path): with open(path) as handle: return json.load(handle) "
    "error: expected 3 columns, found 2 at line 118 in report.csv; retrying with delimiter=';' 0x7f3a 2024-05-17T08:31 "
    "INFO worker[4] finished in 182 ms; build failed: undefined name 'config' (exit code 1) src/app/views.py:42:17"
)
_WORDS = _TEXT.split(" ")
_RESULT_WORDS = ((0.25, 8), (0.5, 22), (0.75, 50), (0.9, 180), (0.99, 600), (1.0, 1_000))
_REPLY_WORDS = ((0.5, 12), (0.9, 40), (1.0, 120))
_EDIT_WORDS = 150
_PADDING_WORDS = 60
_SYLLABLES = [first + second for first in "bdfgklmnprstv" for second in ("a", "e", "i", "o", "u", "an", "er", "is")]
_VOCABULARY, _CHAT_CHARACTERS, _SHARE_OF_NUMBERS = 12_000, 400, 0.15
_SIGNS = ("…", "→", "ok", "done", "✅", "note:", "-", "é")

Message = dict[str, Any]


def agent_history(rounds: int, seed: int = 7) -> list[Message]:
    """Chat messages of an agent's session with `rounds` rounds, ending with a tool result."""
    random = Random(seed)
    messages: list[Message] = [{"role": "system", "content": "You are a coding agent. " + _text(random, 300)}]
    for number in range(rounds):
        if number % ROUNDS_PER_TURN == 0:
            messages.append({"role": "user", "content": f"Request {number}: {_text(random, 25)}"})
        messages.extend(_round(random, number))
    return messages


def long_chat(messages: int, seed: int = 7) -> list[Message]:
    """Chat messages of two who write prose of 440 characters in the mean, in turn; the user's message is the last."""
    random = Random(seed)
    words = ["".join(random.choices(_SYLLABLES, k=random.choice((1, 2, 2, 3, 3, 4)))) for _ in range(_VOCABULARY)]
    weights = [1 / (place + 3) for place in range(_VOCABULARY)]  # few words are common, as in any language

    def said(number: int) -> str:
        sentences: list[str] = []
        while sum(map(len, sentences)) < _CHAT_CHARACTERS:
            drawn = random.choices(words, weights, k=random.randrange(5, 20))
            if random.random() < _SHARE_OF_NUMBERS:
                drawn.insert(-1, f"{random.choice(words)}_{number} at {random.randrange(10_000)} ms")
            sentences.append(f"{' '.join(drawn).capitalize()}{random.choice('..,?').replace(',', ';')}")
        return f"{' '.join(sentences[:3])}\n\n{' '.join(sentences[3:])}".strip()

    roles = ("user", "assistant")
    return [{"role": roles[number % 2 ^ messages % 2 ^ 1], "content": said(number)} for number in range(messages)]


def long_history(messages: int, seed: int = 7) -> list[Message]:
    """The first `messages` of an agent's session whose messages have 250 tokens in the mean, some not in ASCII."""
    rounds = agent_history(messages // 2, seed)[:messages]
    random = Random(seed + 1)
    for message in rounds[1:]:
        message["content"] += f"\n{random.choice(_SIGNS)} {_lines(random, _PADDING_WORDS)}"
    return rounds


def _round(random: Random, number: int) -> Iterator[Message]:
    name, arguments = _call(random)
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    yield {"role": "assistant", "content": _text(random, _drawn(random, _REPLY_WORDS)), "tool_calls": [call]}
    result = _lines(random, _drawn(random, _RESULT_WORDS))
    yield {"role": "tool", "tool_call_id": call["id"], "content": result}


def _call(random: Random) -> tuple[str, dict[str, str]]:
    path = f"src/app/module_{random.randrange(FILES)}.py"
    match random.randrange(10):
        case 0 | 1 | 2 | 3:
            return "read_file", {"path": path}
        case 4 | 5:
            words = (_text(random, _EDIT_WORDS // 10), _text(random, random.randrange(1, _EDIT_WORDS)))
            return "edit_file", {"path": path, "old_string": words[0], "new_string": words[1]}
        case _:
            return "bash", {"command": f"pytest -q {path} -k {_text(random, 3)}"}


def _drawn(random: Random, shares: tuple[tuple[float, int], ...]) -> int:
    """A number of words from a distribution given by its upper percentiles."""
    drawn, low = random.random(), 2
    for share, words in shares:
        if drawn <= share:
            return random.randint(low, words)
        low = words
    return low


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))


def _lines(random: Random, words: int) -> str:
    drawn = iter(random.choices(_WORDS, k=words))
    return "\n".join(" ".join(line) for line in iter(lambda: list(islice(drawn, 10)), []))
