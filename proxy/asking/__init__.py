"""The proxy's own calls to models, for text, through the dispatcher (`dispatch`); failures are results.

`question_for` makes the question; it has no sampling parameters unless the settings name them. `Asking` puts each
question to its server, in the form that the server takes (`AskedForm`). `read_completion` reads the answer; it relies
on no member being present or having the right type.

`poll` asks for votes until their outcome is decided; `strategies.core.effects` says which votes count and what decides.
The votes of one round are asked for at the same time. As soon as the outcome is decided, calls that are still running
are cancelled, which closes their connections. A failed call is a vote that does not count, and is not repeated. If the
first three answers are no votes, no more are asked for.

Servers differ in the members that they take, in whether they must be asked for a stream, in whether they take a system
prompt that is not the client's, and in whether a user message may follow a tool's result. Models that reason spend the
limit of an answer on thoughts. The form in which one question was answered holds for later ones to the same model under
the same credential, as long as this process runs. A refusal teaches only what the form did not say yet, so a question
is asked again only while there is something to learn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from math import ceil
from typing import NamedTuple, Protocol, TypeVar

from proxy.asking.dispatch import (
    EXPIRED,
    NOT_ACCEPTED,
    OVER_BUDGET,
    PAUSED,
    PREEMPTED,
    Caller,
    Dispatcher,
    FinishedCall,
    Lane,
    address_for,
    endpoint_for,
    headers_for,
)
from proxy.http.headers import is_success
from proxy.protocols import compaction
from proxy.protocols.endpoint import Endpoint, Question
from proxy.protocols.replies import tokens_in
from proxy.quoting import label
from proxy.runtime.lru import Lru
from proxy.servers import refusals
from proxy.servers.refusals import Refusal, Subject, Unit
from proxy.servers.upstream import JsonReply, server_of
from proxy.settings.profile import ANY
from proxy.settings.tables import ModelRole
from proxy.values import json_or_none, object_at
from strategies.core.effects import (
    SUMMARIZER,
    Answer,
    Ask,
    Ballot,
    Compact,
    Compacted,
    Effect,
    Failure,
    Polls,
    Result,
    Vote,
    Votes,
    read_vote,
)
from strategies.core.parsing import without_thoughts

T = TypeVar("T")

__all__ = ["Asking", "Caller", "FinishedCall", "Resolver", "Roles"]

FORM_REFUSED = "form-refused"
BYTES_PER_TOKEN = 4  # roughly, for calls whose server does not report a usage
MAX_FORMS = 1_000  # remembered forms; bounded because clients choose the names of models
_MAX_TRIES = 8  # calls for one question, in as many forms

_COUNTED_FAILURES = ("timeout", "unreadable")  # failures of calls whose prompt the server has probably read
_MOST_UNREADABLE = 3  # this many first answers without a vote end a round
_MOST_STARTS = 3
"""How often a question is asked if clients break it off: each start takes the server's cache from their own prompts."""
_UNANSWERED = (PREEMPTED,)  # failures of calls that tell nothing of how a judge answers
_HOPELESS = (PAUSED, EXPIRED, NOT_ACCEPTED, OVER_BUDGET)
"""If a call cannot begin for one of these reasons, the next one cannot either."""
ROOM_TO_THINK = 8_192  # tokens by which the limit is raised once for a model whose reasoning has used it up
_SUBSCRIPTION = b"Bearer sk-ant-oat"
"""How the token of a Claude subscription begins, which is accepted only together with Claude Code's system prompt."""

Roles = Mapping[str, ModelRole]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call: a question, and the server that is asked."""

    role: str  # the name under which its cost is reported
    model: ModelRole  # which model is asked, and where
    endpoint: Endpoint
    question: Question
    wanted: int  # the maximum tokens of an answer that the strategy wants


def question_for(effect: Ask | Ballot, roles: Roles, caller: Caller, n: int = 1) -> ModelCall:
    """The call that an effect makes; `n` is the number of answers that a ballot asks for."""
    role, view = roles[effect.role], effect.view if isinstance(effect, Ask) else None
    if view is not None:
        # Only the request's own model and account have the view in the upstream's cache.
        role = role.of_request()
    model, temperature = role.model or caller.model, role.temperature
    # The strategy counts as we do, the limit is in tokens of the model.
    is_own = role.is_at(caller.upstream.name) and model == caller.model
    slope = max(caller.slope, 1.0) if is_own else 1.0
    most = role.max_tokens or ceil(effect.max_tokens * slope)
    question = Question(model, effect.system, effect.user, most, temperature=temperature, n=n)
    if view is not None:
        question = replace(question, view=view, members=caller.members, alternates=caller.profile.alternate_roles)
    return ModelCall(effect.role, role, endpoint_for(role, caller), question, effect.max_tokens)


@dataclass(slots=True)
class Account:
    """The cost of several calls for one purpose.

    A call is charged by the length of its prompt when it begins, and by the server's usage once it has ended. A call
    that was abandoned, or whose answer was late or unreadable, stays charged. A call that the server refused does not.
    """

    calls: int = 0  # the number of calls that began
    tokens: int = 0  # tokens of their prompts and answers

    def begin(self, expected: int) -> None:
        """Charges a call whose prompt has about `expected` tokens."""
        self.calls += 1
        self.tokens += expected

    def end(self, expected: int, result: Completion | Failure) -> None:
        """Corrects the charge of a call by its result."""
        if isinstance(result, Failure):
            self.tokens -= 0 if result.reason in _COUNTED_FAILURES else expected
        elif result.tokens:
            self.tokens += result.tokens - expected


class Resolver(Protocol):
    """Resolves the effects that a strategy yields."""

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect; failures are results too."""


@dataclass(slots=True, eq=False)
class Asking(Dispatcher):
    """Calls models; one per app. `report_votes` gets the votes of every ballot."""

    report_votes: Callable[[Votes], None] = lambda _: None
    _forms: Lru[Hashable, AskedForm] = field(default_factory=lambda: Lru(MAX_FORMS), init=False)
    """The forms that servers have taught, each for a model and a credential."""
    _lacking: Lru[Hashable, tuple[str, ...]] = field(default_factory=lambda: Lru(MAX_FORMS), init=False)
    """The forms of compaction that servers have shown to lack."""

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect, all asked for at the same time; failures are results too.

        Failures: `timeout`, `unreachable`, `rate-limited`, `http-error`, `unreadable`, and `not-accepted` if the
        upstream has not accepted the caller's credential, so that no key of the settings may be used; `over-budget` if
        the tenant has spent what own calls may cost. In the background also `paused`, if a call did not get its turn in
        time, and `expired`, if the caller's credential was too old by then.
        """
        return tuple(await asyncio.gather(*(self._one(effect, roles, caller) for effect in effects)))

    async def _one(self, effect: Effect, roles: Roles, caller: Caller) -> Result:
        if isinstance(effect, Compact):
            return await self.compacted(effect, roles, caller)
        if not isinstance(effect, Ask):
            votes = await poll(effect, roles, caller, self)
            self.report_votes(votes)
            return votes
        question, account = question_for(effect, roles, caller), Account()
        deadline = self.deadline(question.model, caller)
        result = await _restarted(partial(self.ask, question, caller, account, deadline))
        return result if isinstance(result, Failure) else result.answers[0]

    async def compacted(self, effect: Compact, roles: Roles, caller: Caller) -> Compacted | Failure:
        """The compaction of a list by the request's own upstream, model and credential; else `no-compaction`.

        Which form an upstream lacks is learned once, as the forms of questions are.
        """
        role = roles[SUMMARIZER].of_request()
        key = server_of(caller.upstream.base_url), caller.model, caller.endpoint, hash(tuple(headers_for(role, caller)))
        result: Compacted | Failure = compaction.MISSING
        deadline = self.deadline(role, caller)
        for form in compaction.FORMS.get(caller.endpoint.dialect.name, ()):
            if form in self._lacking.get(key, ()):
                continue
            result = await _restarted(partial(self._compacted_once, effect, form, role, caller, deadline))
            if result != compaction.MISSING:
                break
            _log.info("the upstream offers no compaction by '%s' for %s", form, label(caller.model))
            self._lacking.put(key, (*self._lacking.get(key, ()), form))
        return result

    async def _compacted_once(
        self, effect: Compact, form: str, role: ModelRole, caller: Caller, deadline: float
    ) -> Compacted | Failure:
        asked = compaction.call(form, caller.model, caller.repeated, effect.view, effect.room)
        if form == compaction.SUMMARIZE:
            caller = replace(caller, headers=compaction.accepting(caller.headers))

        async def call(lane: Lane) -> Compacted | Failure:
            reply = await self.send(role, caller, caller.path + asked.path, asked.body, lane, caller.query)
            if isinstance(reply, Failure):
                return reply
            result = compaction.read(form, reply.status, reply.body)
            return result if isinstance(result, Failure) else replace(result, maker=caller.maker)

        return await self.dispatch(SUMMARIZER, role, caller, call, deadline)

    async def ask(
        self, question: ModelCall, caller: Caller, account: Account, deadline: float | None = None
    ) -> Completion | Failure:
        """The result of a question; asked again as long as the server teaches another form for it."""
        key, spent = self._form_key(question, caller), 0
        taught: AskedForm | None = None
        for _ in range(_MAX_TRIES):
            result, form, taught = await self._ask_once(question, caller, account, deadline, taught)
            if taught is None:
                break
            spent += result.tokens if isinstance(result, Completion) else 0
        if isinstance(result, Failure):
            return result
        # Only now: the words of a refusal are no proof that the other form is accepted.
        if form != first_form(question, caller) and self._forms.get(key) != form:
            _log.info("own calls to %s have another form from now on: %r", label(question.question.model), form)
            self._forms.put(key, form)
        return result.costing(spent)

    async def _ask_once(
        self,
        question: ModelCall,
        caller: Caller,
        account: Account,
        deadline: float | None,
        taught: AskedForm | None,
    ) -> tuple[Completion | Failure, AskedForm, AskedForm | None]:
        """The result of at most one call, which is charged to the account before it is made.

        The call has the form that an earlier answer to the question has taught, or that is known for the model. Also
        returns that form, and the other one, if any, in which the answer has taught to ask again.
        """
        key, form = self._form_key(question, caller), taught or AskedForm()
        following: AskedForm | None = None

        async def call(lane: Lane) -> Completion | Failure:
            nonlocal form, following
            # After the wait for a place, so that a question of several votes is refused once.
            form = taught or self._forms.get(key) or first_form(question, caller)
            asked = form.applied(question.question, question.endpoint, caller.members, wanted=question.wanted)
            data = question.endpoint.question(asked)
            expected = len(data) // BYTES_PER_TOKEN
            account.begin(expected)
            # The request's own path and query; at another server the path of its protocol.
            is_own = question.model.is_at(caller.upstream.name)
            path, query = (caller.path, caller.query) if is_own else (question.endpoint.path, "")
            takes = replace(caller, room=(caller.room or len(data)) + asked.n * asked.max_tokens)
            reply = await self.send(question.model, takes, path, data, lane, query)
            result = reply if isinstance(reply, Failure) else read_completion(reply, question.endpoint)
            account.end(expected, result)
            if isinstance(result, Completion):
                answers = [each for each in result.answers if isinstance(each, Answer)]
                following = form.after_answers(answers, is_vote=question.role != SUMMARIZER)
            elif isinstance(reply, JsonReply):
                ours, answer = question.endpoint.asking_members(asked), question.endpoint.answer
                refused = refusals.read(reply.status, reply.body, answer=answer, ours=ours)
                following = form.after_refusal(refused, asked, wanted=question.wanted)
                result = result if following is None else Failure(FORM_REFUSED)
            return result

        return await self.dispatch(question.role, question.model, caller, call, deadline), form, following

    def _form_key(self, question: ModelCall, caller: Caller) -> Hashable:
        """The key under which a form is remembered: the server, the model, the endpoint and the credential."""
        credential = hash(tuple(headers_for(question.model, caller)))  # which is itself not kept
        return server_of(address_for(question.model, caller)), question.question.model, question.endpoint, credential


class Completion(NamedTuple):
    """The answers of one call, of which at least one is readable.

    `tokens` is the cost of the whole call; each answer carries the same number.
    """

    answers: tuple[Answer | Failure, ...]
    tokens: int

    def costing(self, more: int) -> Completion:
        """The same with the tokens of the calls before it."""
        cost = self.tokens + more
        return Completion(tuple(replace(a, tokens=cost) if isinstance(a, Answer) else a for a in self.answers), cost)


def read_completion(reply: JsonReply, endpoint: Endpoint) -> Completion | Failure:
    """The completion in a reply, or the failure that it amounts to."""
    if not is_success(reply.status):
        return Failure("rate-limited" if reply.status == HTTPStatus.TOO_MANY_REQUESTS else "http-error")
    document = json_or_none(reply.body)
    tokens = tokens_in(object_at(document, "usage"))
    answers = tuple((endpoint.answers(document, tokens) if isinstance(document, dict) else None) or ())
    is_readable = any(isinstance(each, Answer) for each in answers)
    return Completion(answers, tokens) if is_readable else Failure("unreadable")


async def _restarted(call: Callable[[], Awaitable[T]]) -> T | Failure:
    """The result of a call that is begun again each time a client has broken it off, up to `_MOST_STARTS` times."""
    for _ in range(_MOST_STARTS):
        result = await call()
        if result != Failure(PREEMPTED):
            return result
    return Failure(PREEMPTED)


async def poll(ballot: Ballot, roles: Roles, caller: Caller, asking: Asking) -> Votes:
    """The votes that came until the outcome was decided or the attempts were used up."""
    account = Account()

    async def cast(n: int) -> list[Vote]:
        return _votes_in(await asking.ask(question_for(ballot, roles, caller, n), caller, account), n)

    polls = Polls(ballot.k, ballot.max_attempts)
    at_once = ballot.at_once and endpoint_for(roles[ballot.role], caller).gives_several_answers
    # One call for all votes is one answer.
    most = ballot.max_attempts if ballot.refills else _MOST_UNREADABLE + (ballot.k - 1 if at_once else 0)
    while not (any(vote.error in _HOPELESS for vote in polls.votes) or _is_unreadable(polls.votes, most)):
        if not (wanted := polls.start_calls()):
            break
        calls = [asyncio.ensure_future(cast(n)) for n in ([wanted] if at_once else [1] * wanted)]
        try:
            for ended in asyncio.as_completed(calls):
                for vote in await ended:
                    polls.add_vote(vote)
                if polls.is_decided or _is_unreadable(polls.votes, most):
                    break
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    return Votes(tuple(polls.votes), account.calls, account.tokens)


def _is_unreadable(votes: Sequence[Vote], most: int) -> bool:
    """Whether the first `most` answers are no votes."""
    answers = [vote for vote in votes if vote.error not in _UNANSWERED]
    return len(answers) >= most and all(vote.yes is None for vote in answers)


def _votes_in(reply: Completion | Failure, n: int) -> list[Vote]:
    """The `n` votes of one call; missing and unreadable ones do not count."""
    if isinstance(reply, Failure):
        return [Vote(None, error=reply.reason)] * n
    votes = [
        read_vote(each.text) if isinstance(each, Answer) else Vote(None, error=each.reason)
        for each in reply.answers[:n]
    ]
    return votes + [Vote(None, error="not-given")] * (n - len(votes))


# -- forms -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskedForm:
    """The form in which one model is asked."""

    without: frozenset[str] = frozenset()
    """The members that the server refuses. An older name of the limit takes the place of a newer one."""
    streams: bool = False  # whether answers come as streams
    takes_system: bool = True
    """Whether a system prompt may be the proxy's. If not, the instructions begin the user message."""
    clients_system: bool = False
    """Whether the credential is accepted only together with the system prompt of the client's own request."""
    alternates: bool = False
    """Whether two messages of one role in a row, or a user message after a tool's result, are refused."""
    thinks: bool = False  # whether reasoning has used up a limit, so that a higher one is asked for
    refuses_room: bool = False  # whether the server has refused a limit higher than the strategy's
    low_effort: bool = False  # whether the model is asked to reason little

    def applied(self, question: Question, endpoint: Endpoint, clients: Mapping[str, str], *, wanted: int) -> Question:
        """The question in this form.

        `clients` are the members of the client's request. `wanted` are the tokens of an answer that the strategy wants;
        the limit of the question itself may be another one, of the settings.
        """
        most, members = question.max_tokens + ROOM_TO_THINK * self.thinks, dict(question.members)
        most = min(most, wanted) if self.refuses_room else most
        question = replace(question, low_effort=self.low_effort, streams=self.streams, without=self.without)
        question = replace(question, max_tokens=most)
        if question.view is not None:
            return replace(question, alternates=question.alternates or self.alternates)
        if self.takes_system and not self.clients_system:
            return question
        name = endpoint.system_member
        if self.clients_system and name in clients:
            members[name] = clients[name]
        return replace(question, system="", user=f"{question.system}\n\n{question.user}", members=members)

    def after_refusal(self, refusal: Refusal, sent: Question, *, wanted: int) -> AskedForm | None:
        """The form to ask in after a refusal of `sent`; None if the refusal teaches nothing."""
        about, is_isolated = refusal.subjects, sent.view is None
        # A prompt that is too long beside its reply says nothing against the members.
        is_too_long = refusal.size(Unit.PROMPT, *[Unit.REPLY] * (sent.max_tokens > wanted)) is not None
        if not self.streams and Subject.STREAM in about:
            return replace(self, streams=True)
        if refusal.members and not is_too_long:
            return replace(self, without=self.without | refusal.members)
        if is_isolated and not self.clients_system and Subject.FOREIGN_SYSTEM in about:
            return replace(self, clients_system=True)
        if is_isolated and sent.system and Subject.ROLES in about:
            return replace(self, takes_system=False)
        if not is_isolated and not sent.alternates and Subject.ROLES in about:
            return replace(self, alternates=True)
        if sent.max_tokens > wanted and Subject.LIMIT in about:
            return replace(self, refuses_room=True)
        return None

    def after_answers(self, answers: Sequence[Answer], *, is_vote: bool) -> AskedForm | None:
        """The form to ask in after answers that reasoning has cut short: with more room, then with less effort.

        Some servers say nothing unless it is in a stream; votes, whose calls are numbered, do not try that.
        """
        if all(map(is_cut_by_reasoning, answers)):
            return None if self.low_effort else replace(self, thinks=True, low_effort=self.thinks)
        is_told = self.streams or is_vote or any(each.text.strip() or each.called_tools for each in answers)
        return None if is_told else replace(self, streams=True)


def first_form(question: ModelCall, caller: Caller) -> AskedForm:
    """The form in which a model is asked that has taught nothing yet."""
    headers, is_own = caller.headers, question.model.is_at(caller.upstream.name)
    is_subscription = any(name == b"authorization" and value.startswith(_SUBSCRIPTION) for name, value in headers)
    endpoint, profile = question.endpoint, caller.profile if is_own else ANY
    refused = {name for name in endpoint.added_members if not getattr(profile, name)}
    if profile.token_limit in endpoint.reply_limits:
        refused.update(endpoint.reply_limits[: endpoint.reply_limits.index(profile.token_limit)])
    return AskedForm(frozenset(refused), is_own and caller.streams, clients_system=is_subscription)


def is_cut_by_reasoning(answer: Answer) -> bool:
    """Whether the limit ended an answer that had reasoning; where there is no text at all, that was hidden."""
    text = without_thoughts(answer.text)
    return answer.finish_reason == "length" and (answer.reasoned or text != answer.text or not text.strip())
