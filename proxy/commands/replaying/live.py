"""Asks a model for the next action of sampled requests, as the client sent them and as condensed.

It is asked for the original twice and for the view once, one after the other, the view first every other time: what the
upstream has cached then favours neither. Nothing that a model says is kept: a line of the file of results has figures.

A request is measured only if the worst case of its calls is still in the budget: replies of the whole length, and
prompts of a token for each byte, whatever the upstream's tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from proxy.commands.replaying.agreement import Action, LiveResults, Measured, Needs, action_of, compared
from proxy.commands.replaying.measures import ReplayedRequest
from proxy.commands.replaying.play import Playing
from proxy.commands.replaying.recorded import Conversation
from proxy.commands.replaying.results import results_in
from proxy.errors import UpstreamUnavailable
from proxy.http.sse import EventReader
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.replies import Usage
from proxy.protocols.watching import WatchedReply
from proxy.servers.upstream import Upstream, UpstreamRequest
from proxy.values import json_or_none
from strategies.core.economics import Prices
from strategies.core.messages import Role
from strategies.core.names import find_names

NEXT = 6  # messages in which names are looked for
_TRIES, _LONGEST_WAIT, _MOST_FAILURES = 3, 60, 3
_HEADERS = ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))
_PIECE = re.compile(r'"partial_json"\s*:\s*("(?:\\.|[^"\\])*")')
_THOUGHT = re.compile(r"</think(?:ing)?>")


class Candidate(NamedTuple):
    """A request that can be asked: what the client sent, and its view."""

    playing: Sampled
    depth: int  # condensations so far
    original: Sequence[str]
    raws: Sequence[str]


class Sampled(Playing):
    """A conversation under one strategy; `found` are the requests whose view differs from what the client sent."""

    depth = too_long = 0
    found: Sequence[Candidate] = ()

    async def send(self, end: int) -> ReplayedRequest:
        decided = await super().send(end)
        self.depth += decided.condensed
        own = {raw: raw for raw in self.client.raws}  # so that what a view has of them costs no memory
        original, raws = self.client.raws[:end], [own.get(each.raw, each.raw) for each in self.view]
        if not decided.refused and raws != original:
            self.found = [*self.found, Candidate(self, self.depth, original, raws)] if decided.fits else self.found
            self.too_long += not decided.fits
        return decided


def is_measurable(conversation: Conversation) -> bool:
    """Whether a vendor would take its requests: none takes calls of tools that are not offered."""
    read = map(conversation.endpoint.dialect.read, conversation.messages)
    return bool(conversation.tools) or not any(each.calls or each.answers for each in read)


def spread(sessions: Sequence[Sequence[Candidate]], most: int) -> list[Candidate]:
    """At most so many candidates: of each session as many as of the others, if it has them, over all its depth."""
    shares = [0] * len(sessions)
    for _ in range(min(most, sum(map(len, sessions)))):
        shares[min((n, at) for at, n in enumerate(shares) if n < len(sessions[at]))[1]] += 1
    pairs = list(zip(sessions, shares, strict=True))
    return [found[(2 * nth + 1) * len(found) // (2 * n)] for found, n in pairs for nth in range(n)]


class Stopped(Exception):
    """The measurement ends here; the message says why."""


class _Failed(Exception):
    """A request could not be measured; the message says why."""


class Purse:
    """What was spent, in money and tokens, and what may be: in money, or in tokens where there are no prices."""

    def __init__(self, most: float | None, prices: Prices | None) -> None:
        self._most, self._prices, self.spent = most, prices, (0.0, 0)

    def check(self, worst: Sequence[tuple[float, int]]) -> None:
        """Raises `Stopped` if these costs could exceed what may be spent."""
        money, tokens = (spent + sum(each[at] for each in worst) for at, spent in enumerate(self.spent))
        could = money if self._prices else tokens
        if self._most is not None and could > self._most:
            raise Stopped(f"with the next request up to {could:,.6g} could be spent, which exceeds --budget")

    def worst(self, body: bytes, reply: int) -> tuple[float, int]:
        size = len(body)
        return max(self._cost(Usage(size, reply)), self._cost(Usage(size, reply, 0, size)))

    def pay(self, cost: tuple[float, int], sign: int = 1) -> None:
        self.spent = self.spent[0] + sign * cost[0], self.spent[1] + sign * cost[1]

    def settle(self, worst: tuple[float, int], usage: Usage | None) -> None:
        """Replaces the worst case, which was paid, by what the upstream says, if it does."""
        if usage is not None:
            self.pay(worst, -1)
            self.pay(self._cost(usage))

    def _cost(self, usage: Usage) -> tuple[float, int]:
        call = {"prompt": usage.prompt, "reply": usage.completion, "cached": usage.cached, "written": usage.written}
        return self._prices.of_call(**call) if self._prices else 0.0, usage.prompt + usage.completion


class Asker:
    """Asks the upstream at an address; `limit` is the most tokens of a reply, `results` the file of results."""

    def __init__(self, upstream: Upstream, url: str, key: str, limit: int, purse: Purse, results: Path) -> None:
        self._upstream, self._url, self._key, self._limit = upstream, url, key, limit
        self._purse, self._results = purse, results

    async def measure(self, live: LiveResults, sample: Sequence[Candidate]) -> None:
        """Measures what the file of results does not have yet, until something ends it, which `live.stopped` says."""
        lines = results_in(self._results)
        known = {key: Measured(**one) for key, one in lines.items() if one.keys() == {*Measured._fields}}
        in_a_row = 0
        try:
            for turn, one in enumerate(sample):
                bodies = self._bodies(one)
                key = blake2b(b"\0".join([self._url.encode(), *bodies]), digest_size=12).hexdigest()
                live.reused += key in known
                try:
                    live.measured.append(known.get(key) or await self._measured(one, bodies, key, turn % 2))
                    live.needs.append(needs(one))
                    in_a_row = 0
                except _Failed as failed:
                    live.failures[str(failed)] += 1
                    in_a_row += 1
                    if in_a_row == _MOST_FAILURES:
                        raise Stopped(f"{in_a_row} requests in a row failed: {failed}") from None
        except Stopped as stopped:
            live.stopped = str(stopped)
        except asyncio.CancelledError:  # an interrupt: what was done is reported
            live.stopped = "interrupted"
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        live.spent = self._purse.spent

    def _bodies(self, one: Candidate) -> Sequence[bytes]:
        """Original and view, without signed reasoning: it is bound to what stood before, which no file has whole."""
        client, endpoint = one.playing.client, one.playing.client.endpoint
        told = {**endpoint.own_members, **endpoint.usage_probe({})}
        more = {endpoint.reply_limits[0]: self._limit, **{name: json.loads(value) for name, value in told.items()}}
        plain = [
            [json.dumps(endpoint.dialect.unbound(json.loads(raw))) for raw in of] for of in (one.original, one.raws)
        ]
        return [client.body(raws, stream=True, **more) for raws in plain]

    async def _measured(self, one: Candidate, bodies: Sequence[bytes], key: str, turn: int) -> Measured:
        money, tokens = self._purse.spent
        order, asked = ((1, 0, 0) if turn else (0, 1, 0)), ([], [])  # type: Any, tuple[list[Any], list[Any]]
        self._purse.check([self._purse.worst(bodies[at], self._limit) for at in order])
        for at in order:
            asked[at].append(await self._action(one, bodies[at]))
        ((first, soon), (second, _)), ((view, then),) = asked
        conversation = one.playing.conversation
        named = key, conversation.session or conversation.id, one.playing.strategy, one.depth
        spent = self._purse.spent[1] - tokens, self._purse.spent[0] - money
        measured = Measured(*named, *compared(first, second, view), (soon, then), *spent)
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measured._asdict()) + "\n")
        return measured

    async def _action(self, one: Candidate, body: bytes) -> tuple[Action, float]:
        """The next action, and the seconds to its first token; raises `_Failed`. Waits where the upstream says so."""
        worst, endpoint = self._purse.worst(body, self._limit), one.playing.client.endpoint
        self._purse.pay(worst)  # it stays paid if the call breaks off
        for left in reversed(range(_TRIES)):
            try:
                status, wait, watched, data, seconds = await self._reply(endpoint, body)
            except UpstreamUnavailable as error:
                raise _Failed(error.message.rstrip(".")) from None
            if status == 200:
                break
            if status != 429 or not left:
                self._purse.pay(worst, -1)
                raise _Failed(f"the upstream answered {status}")
            await asyncio.sleep(min(wait, _LONGEST_WAIT))
        self._purse.settle(worst, watched.usage())
        if (action := _action_in(endpoint, watched.items(), data, one.playing.conversation.tools)) is None:
            raise _Failed("the reply ended before an action (see --reply-tokens)")
        return action, seconds

    async def _reply(self, endpoint: Endpoint, body: bytes) -> tuple[int, float, WatchedReply, bytes, float]:
        """The status, the seconds to wait, the reply and its bytes, and the seconds to the first token."""
        name, before = endpoint.key_header
        headers = [*endpoint.version_headers, *_HEADERS, *([(name, before + self._key.encode())] if self._key else [])]
        started, first, data, events = perf_counter(), 0.0, b"", EventReader()
        request = UpstreamRequest(self._url, "POST", endpoint.path.encode(), b"", headers, body)
        reply = await self._upstream.send(request)
        watched = WatchedReply(endpoint, reply.headers, endpoint.capture(reply.headers))
        try:
            async for chunk in reply.chunks():
                watched.feed(chunk)
                data += chunk
                said = [each for each in events.feed(chunk) if not endpoint.is_greeting(json_or_none(each))]
                first = first or (perf_counter() - started if said else 0.0)
        finally:
            await reply.close()
        wait = next((value for name, value in reply.headers if name.lower() == b"retry-after"), b"")
        seconds = first or perf_counter() - started
        return reply.status, float(wait) if wait.isdigit() else 1.0, watched, data, seconds


def _action_in(
    endpoint: Endpoint, items: Sequence[Mapping[str, Any]], data: bytes, tools: Sequence[Any]
) -> Action | None:
    """What a reply does first; None if it ended before that."""
    calls = [call for item in items for call in endpoint.dialect.read(item).calls]
    text = _THOUGHT.split("\n".join(map(endpoint.dialect.text, items)))[-1].strip()
    if calls and calls[0].arguments in ("", "{}"):  # of Anthropic's a cut one is empty, and its pieces are not
        pieces = "".join(map(json.loads, _PIECE.findall(data.decode("utf-8", "replace"))))
        return action_of(calls[0]._replace(arguments=pieces), "", tools)
    return action_of(calls[0] if calls else None, text, tools) if calls or text else None


def needs(one: Candidate) -> Needs:
    """Which names of the agent's next messages the view no longer has, and which of them it read again by itself."""
    conversation, dialect = one.playing.conversation, one.playing.client.endpoint.dialect
    messages = conversation.messages[len(one.original) :][:NEXT]
    following = [(dialect.read(each), dialect.text(each)) for each in messages]
    done = [(read, text) for read, text in following if read.role is Role.ASSISTANT]
    texts = [part for read, text in done for part in (text, *(call.arguments for call in read.calls))]
    history, view = (
        "\n".join(json.dumps(json.loads(raw), ensure_ascii=False) for raw in raws) for raws in (one.original, one.raws)
    )
    used = {name for text in texts for name in find_names(text) if name in history}
    # A key of the environment may stand in a recorded command.
    gone = sorted(name for name in used if name not in view and name not in os.environ.values())
    told = "\n".join(text for read, text in following if read.role is not Role.ASSISTANT)
    return Needs(len(used), gone, sum(name in told for name in gone))
