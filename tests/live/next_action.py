"""What a small real model does next, with and without the view, by `condenser replay --live`.

    make live ARGS=next                  eight recorded chats under the default, `recent` and `summary`
    make live ARGS="next 4 1.5"          four of them, at a temperature

In each chat the user states the numbers of tickets and asks for one now and then; the recorded answers are right. The
temperature is the server's own, unless one is given. Summaries are a script's: those of so small a model are refused
for their form.
"""

import contextlib
import io
import json
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from proxy.cli import main
from tests.live.llama import MODEL, Message, llama

STRATEGIES = ("mask+extract", "recent", "summary")
WINDOW, MOST, SESSIONS, REQUESTS = 2_048, 800, 8, 2
_NAMES = ["Bruno", "Farid", "Liam", "Rosa", "Nils", "Ines", "Olga", "Paul", "Tara", "Umar"]
_ABOUT = ["the invoice page is empty", "the backup job stops at night", "the search box ignores umlauts"]


def chat(seed: int, temperature: float | None = None, rounds: int = 28) -> dict[str, Any]:
    """A conversation of about 1,300 tokens, in which one turn in three is a question."""
    dice = random.Random(seed)
    messages: list[Message] = [{"role": "system", "content": "You are the assistant of a help desk. Be brief."}]
    numbers: dict[str, int] = {}
    for turn in range(rounds):
        if turn % 3 == 2:
            name = dice.choice(list(numbers))
            said, answer = (
                f"Which number has the ticket of {name}?",
                f"The ticket of {name} has the number {numbers[name]}.",
            )
        else:
            name, number = dice.choice(_NAMES), dice.randrange(10_000, 100_000)
            numbers[name] = number
            said = f"The ticket of {name} has the number {number}: {dice.choice(_ABOUT)}, and nobody knows since when."
            answer = f"Noted. I look after the ticket {number} of {name}."
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    named = {"id": f"chat {seed}", "model": MODEL, "messages": messages}
    return named if temperature is None else {**named, "temperature": temperature}


def measured(
    sessions: int = SESSIONS,
    temperature: float | None = None,
    requests: int = REQUESTS,
    strategies: Sequence[str] = STRATEGIES,
) -> str:
    """The report of a replay of so many chats, as JSON."""
    with tempfile.TemporaryDirectory() as folder, llama(n_ctx=WINDOW, n_parallel=1, n_batch=256, n_ubatch=256) as url:
        talks = Path(folder) / "talks.jsonl"
        talks.write_text("".join(json.dumps(chat(seed, temperature)) + "\n" for seed in range(sessions)))
        asked = ["--live", f"{url}/v1", "--sample", str(sessions * requests), "--reply-tokens", "24", "--json"]
        asked += ["--results", str(Path(folder) / "figures.jsonl")]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            main(["replay", str(talks), "--strategy", ",".join(strategies), "--window", str(WINDOW), *asked])
    return printed.getvalue()


def run(words: Sequence[str]) -> None:
    """Prints the table of docs/internals/quality.md."""
    os.environ |= {"CONDENSER_MARKS__MOST": str(MOST), "CONDENSER_CONFIG": ""}
    sessions, temperature = int(words[0]) if words else SESSIONS, float(words[1]) if words[1:] else None
    live = json.loads(measured(sessions, temperature))["live"]
    print("| strategy | compared by | requests | sessions | as the original | A/A | points less | at most |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for of in live["agreement"]:
        if ", condensed" not in of["of"] and of["by"] != "tool":
            figures = f"{of['view']:.0%} (at least {of['least']:.0%}) | {of['noise']:.0%}"
            less = f"{100 * of['worse']:.0f} | {100 * of['most']:.0f}"
            print(f"| `{of['of']}` | {of['by']} | {of['requests']} | {of['sessions']} | {figures} | {less} |")
    first, view = (mean(each["seconds"][at] for each in live["measured"]) for at in (0, 1))
    print(f"first token, mean: {first:.1f} s, {view:.1f} s")
    print(f"failures: {live['failures']}; stopped: {live['stopped'] or 'no'}")
