"""What a replay has in the place of its models: scripts, or real models at addresses that the caller names.

Either way `tokens`, of which `written` are answers, and `calls` say what the proxy's own calls cost, and `votes` and
`yes_votes` what judges said.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from proxy.asking import Caller, Resolver, Roles
from proxy.replaying.scripted import scripted_answer, scripted_votes
from proxy.tokens.counter import Counter, Tokenizers
from strategies.core.economics import Prices
from strategies.core.effects import Answer, Ask, Effect, Failure, Result, Votes

MAX_COST = "max-cost"
_UNBILLED = ("unreachable", "rate-limited", "http-error")
"""Failures of calls that no server has answered for money."""


class ScriptedSummarizer:
    """Answers effects without a model, by `proxy.replaying.scripted`."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self.tokens = self.calls = self.written = self.votes = self.yes_votes = 0

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        counter = self._tokenizers.for_model(caller.model, caller.endpoint.counter)
        results = tuple(await asyncio.gather(*(self._one(effect, roles, caller, counter) for effect in effects)))
        for result in results:
            self._count(result, counter)
        return results

    async def _one(self, effect: Effect, roles: Roles, caller: Caller, counter: Counter) -> Result:
        return scripted_answer(effect, counter) if isinstance(effect, Ask) else scripted_votes(effect, counter)

    def _count(self, result: Result, counter: Counter) -> None:
        match result:
            case Answer():
                self.tokens += result.tokens
                self.written += written(result, counter)
                self.calls += 1
            case Votes():
                self.tokens += result.tokens
                self.written += written(result, counter)
                self.calls += result.calls
                self.votes += sum(vote.yes is not None for vote in result.votes)
                self.yes_votes += sum(vote.yes is True for vote in result.votes)
            case Failure():
                self.calls += result.reason != MAX_COST


class RealModels(ScriptedSummarizer):
    """Asks real models for the effects of `asked` roles, and scripts for the others.

    A call that could bring the cost above `most`, in the currency of the prices, is not made: it fails, and `stopped`
    says so, because the conversation is then no measurement any more. `failures` counts why calls failed.
    """

    def __init__(self, tokenizers: Tokenizers, asked: Collection[str], most: float | None) -> None:
        super().__init__(tokenizers)
        self._asked, self._most = asked, most
        self._asking: Resolver | None = None
        self._prices: Callable[[str], Prices] | None = None
        self.spent, self.stopped = 0.0, False
        self.failures: Tally[str] = Tally()

    def connect(self, asking: Resolver, prices: Callable[[str], Prices]) -> None:
        """Names who makes the calls, and what a million tokens of each model cost."""
        self._asking, self._prices = asking, prices

    async def _one(self, effect: Effect, roles: Roles, caller: Caller, counter: Counter) -> Result:
        if effect.role not in self._asked or self._asking is None or self._prices is None:
            return await super()._one(effect, roles, caller, counter)
        prices = self._prices(roles[effect.role].model or caller.model)
        prompt, reply = _most_tokens(effect, counter)
        reserved = prices.of_call(prompt=prompt, reply=reply)
        if self.stopped or (self._most is not None and self.spent + reserved > self._most):
            self.stopped = True
            return Failure(MAX_COST)
        self.spent += reserved
        (result,) = await self._asking.resolve((effect,), roles, caller)
        if isinstance(result, Answer) and not result.tokens:
            result = replace(result, tokens=prompt + written(result, counter))
        if isinstance(result, Failure):
            self.failures[result.reason] += 1
            cost = 0.0 if result.reason in _UNBILLED else reserved
        else:
            self.failures.update(vote.error for vote in getattr(result, "votes", ()) if vote.error)
            replied = min(written(result, counter), result.tokens)
            cost = prices.of_call(prompt=result.tokens - replied, reply=replied)
        self.spent += cost - reserved
        return result


def written(result: Answer | Votes, counter: Counter) -> int:
    """About how many tokens models wrote."""
    if isinstance(result, Answer):
        return counter.text(result.text)
    return sum(counter.text(vote.reasoning) for vote in result.votes)


def _most_tokens(effect: Effect, counter: Counter) -> tuple[int, int]:
    """The tokens of the prompts and replies that an effect can cost."""
    prompt = counter.text(effect.system) + counter.text(effect.user)
    if isinstance(effect, Ask):
        return prompt + counter.text(effect.view or ""), effect.max_tokens
    return prompt * (1 if effect.at_once else effect.max_attempts), effect.max_tokens * effect.max_attempts
