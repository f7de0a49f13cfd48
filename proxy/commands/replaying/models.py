"""What a replay has in the place of its models: scripts, or real models at addresses that the caller names.

The scripted summarizer only copies: first the user's words in order, then as many of the newest tool calls as there is
room for. So it shows how much a summary has room for, not how well a model would write it. Scripted judges vote YES
where a sub-task has ended, or the assistant repeats itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter as Tally
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from proxy.asking import Caller, Roles
from proxy.condensing.policy import RATIOS
from proxy.protocols import compaction
from proxy.services import Services
from proxy.tokens.counter import Counter, Tokenizers
from strategies.core.economics import Prices
from strategies.core.effects import Answer, Ask, Ballot, Compact, Compacted, Effect, Failure, Result, Vote, Votes
from strategies.core.excerpt import cut_text
from strategies.core.history import in_one
from strategies.core.ledger import split_ledger
from strategies.core.messages import TokenCounter, dump, literal
from strategies.core.replacement import OPENING, SUMMARY_OPENING
from strategies.core.summary import CARD_TOKENS
from strategies.core.terms import distinct
from strategies.dialects.messages import MESSAGES
from strategies.dialects.responses import RESPONSES

MAX_COST = "max-cost"
_UNBILLED = ("unreachable", "rate-limited", "http-error")  # failures of calls that no server has answered for money
_MESSAGE = re.compile(r'<message index="\d+" role="(\w+)">\n(.*?)\n</message>', re.DOTALL)
_EARLIER = re.compile(r"<earlier_record>\n(.*?)\n</earlier_record>", re.DOTALL)
_SAID = "The user said: "
_DID = "The assistant "
_LINE = 240
_CARDS = "<memory>"
_ASKED = ("<summary>", '{"summary"')  # what the prompts that ask for a record have; a tag is read in answer to both
_ANY = 10**9
COMPACTION_TOKENS = 1_500
"""What a vendor's compaction is taken to have: vendors state no length."""
_REPEATED = 3  # so many times the same call, one after the other, is no progress


class ScriptedSummarizer:
    """Answers effects without a model.

    `tally` says what the proxy's own calls cost, by the names that `ReplayedRequest` has for it.
    """

    services: Services  # those of the proxy that asks it

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self.tally: Tally[str] = Tally()
        self.read: Sequence[str] = ()
        """The messages that were forwarded last, as JSON text: a view that continues them is read from the cache."""

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        counter = self._tokenizers.for_model(caller.model, caller.endpoint.counter)
        results = tuple(await asyncio.gather(*(self._one(effect, roles, caller, counter) for effect in effects)))
        for effect, result in zip(effects, results, strict=True):
            if isinstance(result, Failure):
                self.tally["own_calls"] += result.reason != MAX_COST
                continue
            self.tally["own_tokens"] += result.tokens
            self.tally["own_replies"] += _written(result, counter)
            if isinstance(effect, Ask | Compact) and effect.view is not None:
                self.tally["own_cached"] += self._read_before(effect.view, counter)
            self.tally["own_calls"] += result.calls if isinstance(result, Votes) else 1
            if isinstance(result, Votes):
                self.tally["votes"] += sum(vote.yes is not None for vote in result.votes)
                self.tally["yes_votes"] += sum(vote.yes is True for vote in result.votes)
        return results

    def _read_before(self, view: str, counter: TokenCounter) -> int:
        """The tokens of the messages with which a view begins like the prompt that the upstream has read last."""
        messages = zip(json.loads(view), map(json.loads, self.read), strict=False)
        pairs = takewhile(lambda pair: pair[0] == pair[1], messages)
        return sum(counter.message(message) for message, _ in pairs)

    async def _one(self, effect: Effect, roles: Roles, caller: Caller, counter: Counter) -> Result:
        if isinstance(effect, Compact):
            return scripted_compaction(effect, caller, counter)
        return scripted_answer(effect, counter) if isinstance(effect, Ask) else scripted_votes(effect, counter)


class RealModels(ScriptedSummarizer):
    """Asks real models for the effects of `asked` roles, through the proxy's `services`, and scripts for the others.

    A call that could bring the cost above `most`, in the currency of the prices, is not made: it fails, and `stopped`
    says so, because the conversation is then no measurement any more. `failures` counts why calls failed.
    """

    def __init__(self, tokenizers: Tokenizers, asked: Collection[str], most: float | None) -> None:
        super().__init__(tokenizers)
        self._asked, self._most = asked, most
        self.spent, self.stopped = 0.0, False
        self.failures: Tally[str] = Tally()

    async def _one(self, effect: Effect, roles: Roles, caller: Caller, counter: Counter) -> Result:
        if isinstance(effect, Compact) or effect.role not in self._asked:
            return await super()._one(effect, roles, caller, counter)
        prices = prices_of(self.services, roles[effect.role].model or caller.model)
        prompt, reply = _most_tokens(effect, counter)
        reserved = prices.of_call(prompt=prompt, reply=reply)
        if self.stopped or (self._most is not None and self.spent + reserved > self._most):
            self.stopped = True
            return Failure(MAX_COST)
        self.spent += reserved
        (result,) = await self.services.asking.resolve((effect,), roles, caller)
        if isinstance(result, Failure):
            self.failures[result.reason] += 1
            self.spent -= reserved if result.reason in _UNBILLED else 0.0
            return result
        if isinstance(result, Votes):
            self.failures.update(vote.error for vote in result.votes if vote.error)
        elif not result.tokens:
            result = replace(result, tokens=prompt + _written(result, counter))
        replied = min(_written(result, counter), result.tokens)
        self.spent += prices.of_call(prompt=result.tokens - replied, reply=replied) - reserved
        return result


def prices_of(services: Services, model: str) -> Prices:
    """What a million tokens of a model cost: by the settings, as published, or by usual ratios."""
    return services.policies.prices(model) or RATIOS


def _written(result: Answer | Votes | Compacted, counter: Counter) -> int:
    """About how many tokens models wrote."""
    if isinstance(result, Answer):
        return counter.text(result.text)
    if isinstance(result, Compacted):
        return COMPACTION_TOKENS
    return sum(counter.text(vote.reasoning) for vote in result.votes)


def _most_tokens(effect: Ask | Ballot, counter: Counter) -> tuple[int, int]:
    """The tokens of the prompts and replies that an effect can cost."""
    prompt = counter.text(effect.system) + counter.text(effect.user)
    if isinstance(effect, Ask):
        return prompt + counter.text(effect.view or ""), effect.max_tokens
    return prompt * (1 if effect.at_once else effect.max_attempts), effect.max_tokens * effect.max_attempts


def scripted_compaction(effect: Compact, caller: Caller, counter: TokenCounter) -> Compacted | Failure:
    """A compaction of `COMPACTION_TOKENS` in the form of the protocol's vendor; chat has none."""
    name, maker = counter.dialect.name, caller.maker
    text = _within(scripted_lines(_history_in(effect.view, counter)), COMPACTION_TOKENS, counter)
    blocks: Mapping[str, Mapping[str, object]] = {
        MESSAGES.name: {"role": "assistant", "content": [{"type": "compaction", "content": text, "signature": "s"}]},
        RESPONSES.name: {"type": "compaction", "id": "cmp_replay", "encrypted_content": text},
    }
    if name not in blocks:
        return compaction.MISSING
    tokens = counter.text(effect.view) + COMPACTION_TOKENS
    return Compacted((dump(blocks[name]),), maker, compaction.FORMS[name][0], tokens)


def scripted_answer(ask: Ask, counter: TokenCounter) -> Answer:
    """The summarizer's answer in at most nine tenths of the record's length, in a `<summary>` tag if one is read.

    It writes no memory cards; where some are wanted, their room is left.
    """
    cards = min(CARD_TOKENS, ask.max_tokens // 2) if _CARDS in ask.system or _CARDS in ask.user else 0
    history = ask.user if ask.view is None else _history_in(ask.view, counter)
    most = int(min(ask.max_tokens - cards, ask.record or ask.max_tokens) * 0.9)
    text = _within(scripted_lines(history), most, counter)
    prompt = counter.text(ask.system) + counter.text(ask.user) + counter.text(ask.view or "")
    is_tagged = any(form in part for form in _ASKED for part in (ask.system, ask.user))
    answer = f"<summary>{text}</summary>" if is_tagged else text
    return Answer(answer, "stop", prompt + counter.text(answer))


def _history_in(view: str, counter: TokenCounter) -> str:
    """The prompt that shows a view which a model continues, its record as an earlier one."""
    messages = [literal(value, counter) for value in json.loads(view)]
    places = [at for at, message in enumerate(messages) if message.text.startswith((OPENING, SUMMARY_OPENING))]
    start = places[-1] + 1 if places else 0
    record = split_ledger(messages[places[-1]].text.partition("\n\n")[2])[0] if places else ""
    shown = in_one([*enumerate(messages[start:], start)], _ANY, counter)
    return f"<earlier_record>\n{record}\n</earlier_record>\n\n{shown}"


def scripted_lines(prompt: str) -> list[str]:
    """The lines of a record, of any length, of the history in a prompt; those of an earlier record come first."""
    match = _EARLIER.search(prompt)
    lines = [line for line in match.group(1).splitlines() if line] if match else []
    for role, body in _MESSAGE.findall(prompt):
        if role == "user" and body.strip():
            lines.append(_SAID + " ".join(body.split())[:_LINE])
        if role == "assistant":
            lines += [_DID + line[:_LINE] for line in _calls(body)]
    return sorted(lines, key=lambda line: line.startswith(_DID)) or ["Nothing was said or done."]


def _calls(body: str) -> list[str]:
    return [line for line in body.splitlines() if line.startswith("calls ")]


def _within(lines: Sequence[str], cap: int, counter: TokenCounter) -> str:
    """The user's first lines that fit, then the newest calls that fit after them, in order."""
    kept, left = _fitting([line for line in lines if not line.startswith(_DID)], cap, counter)
    calls, _ = _fitting([line for line in reversed(lines) if line.startswith(_DID)], left, counter)
    return "\n".join([*kept, *reversed(calls)]) or cut_text("\n".join(lines), max(cap, 1), counter)


def _fitting(lines: Sequence[str], room: int, counter: TokenCounter) -> tuple[Sequence[str], int]:
    """The longest run of lines from the first one on that fits into `room` tokens, and the tokens left of `room`."""
    for number, line in enumerate(lines):
        tokens = counter.text(line) + 1
        if tokens > room:
            return lines[:number], room
        room -= tokens
    return lines, room


def scripted_votes(ballot: Ballot, counter: TokenCounter) -> Votes:
    """The votes of judges without a model: unanimous by `stage_is_done`, as many as decide the outcome."""
    yes, reasoning = stage_is_done(ballot.user)
    votes = (Vote(yes, reasoning),) * ((ballot.k + 1) // 2 if yes else ballot.k // 2 + 1)
    prompt = counter.text(ballot.system) + counter.text(ballot.user)
    tokens = len(votes) * counter.text(reasoning) + prompt * (1 if ballot.at_once else len(votes))
    return Votes(votes, len(votes), tokens)


def stage_is_done(prompt: str) -> tuple[bool, str]:
    """What a judge would vote on the history in a prompt, by the grounds in the judges' prompt, and why.

    YES where the assistant repeats itself, and where its work has ended with an answer and the user goes on to
    something else: most words of the newest message were not in the turn before. Else NO.
    """
    messages = _MESSAGE.findall(prompt)
    calls = [_calls(body) for role, body in messages if role == "assistant"]
    if len(calls) >= _REPEATED and calls[-1] and all(each == calls[-1] for each in calls[-_REPEATED:]):
        return True, "The assistant repeats the same call without progress."
    starts = [i for i, (role, _) in enumerate(messages) if role == "user"]
    if len(starts) < 2 or starts[-1] != len(messages) - 1 or not calls or calls[-1]:
        return False, "The assistant is in the middle of its work."
    asked = distinct(messages[-1][1])
    before = distinct("\n".join(body for _, body in messages[starts[-2] : -1]))
    if len(asked) < 2 or 2 * len(asked & before) >= len(asked):
        return False, "The user goes on about what was done last."
    return True, "The last sub-task is complete, and the user goes on to another."
