"""In which form a server takes the proxy's own questions: what its refusals and its cut answers have taught.

Servers differ in the name of the limit, in whether they take a system prompt that is not the client's, and in whether
a user message may follow a tool's result. Models that reason spend the limit of an answer on thoughts. What one call
was taught holds for later calls to the same model under the same credential, as long as this process runs. A refusal
teaches only what the form did not say yet, so a question is asked again only while there is something to learn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus

from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.question import Question
from proxy.http.headers import Headers
from proxy.knowledge.profiles import REFUSING
from strategies.core.effects import Answer
from strategies.core.parsing import without_thoughts

ROOM_TO_THINK = 8_192
"""Tokens by which the limit is raised once for a model whose reasoning has used it up."""
_MAX_READ = 4_096  # bytes of a refusal
_SUBSCRIPTION = b"Bearer sk-ant-oat"
"""How the token of a Claude subscription begins, which is accepted only together with Claude Code's system prompt."""
_CREDENTIAL_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

_FOREIGN_SYSTEM = re.compile(r"authori[sz]ed for use with|instructions are not valid", re.IGNORECASE)
_ABOUT_ROLES = re.compile(r"\bsystem\b|\bdeveloper\b|\broles?\b|\balternat", re.IGNORECASE)
_ABOUT_EFFORT = re.compile(
    r"reasoning|effort|thinking|un(?:known|recogni[sz]ed|supported|expected)|extra", re.IGNORECASE
)
_ABOUT_LIMIT = re.compile(r"token|maximum|too (?:large|high|long|big)|exceed|context|length", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AskedForm:
    """The form in which one model is asked."""

    limit: str = ""
    """The name of the member that bounds the answer; "" for the newest."""
    takes_system: bool = True
    """Whether a system prompt may be the proxy's. If not, the instructions begin the user message."""
    clients_system: bool = False
    """Whether the credential is accepted only together with the system prompt of the client's own request."""
    alternates: bool = False
    """Whether two messages of one role in a row, or a user message after a tool's result, are refused."""
    thinks: bool = False
    """Whether reasoning has used up a limit, so that a higher one is asked for."""
    refuses_room: bool = False
    """Whether the server has refused a limit higher than the strategy's."""
    low_effort: bool = False
    """Whether the model is asked to reason little."""
    refuses_effort: bool = False

    def applied(self, question: Question, endpoint: Endpoint, clients: Mapping[str, str], *, wanted: int) -> Question:
        """The question in this form.

        `clients` are the members of the client's request. `wanted` are the tokens of an answer that the strategy wants;
        the limit of the question itself may be another one, of the settings.
        """
        most, members = question.max_tokens + ROOM_TO_THINK * self.thinks, dict(question.members)
        if self.refuses_room:
            most = min(most, wanted)
        if self.low_effort:
            members |= endpoint.low_effort
        question = replace(question, max_tokens=most, members=members)
        if question.view is not None:
            return replace(question, alternates=question.alternates or self.alternates)
        if self.takes_system and not self.clients_system:
            return question
        name = endpoint.system_member
        if self.clients_system and name in clients:
            members[name] = clients[name]
        return replace(question, system="", user=f"{question.system}\n\n{question.user}", members=members)

    def after_refusal(
        self, status: int, body: bytes, sent: Question, endpoint: Endpoint, *, wanted: int
    ) -> AskedForm | None:
        """The form to ask in after a refusal of `sent`; None if the refusal teaches nothing."""
        newest, *older = endpoint.reply_limits
        if status == HTTPStatus.BAD_REQUEST and older and not self.limit and newest.encode() in body:
            return replace(self, limit=older[0])
        text, is_isolated = body[:_MAX_READ].decode("utf-8", "replace"), sent.view is None
        if status in _CREDENTIAL_REFUSED and is_isolated and not self.clients_system and _FOREIGN_SYSTEM.search(text):
            return replace(self, clients_system=True)
        if status not in REFUSING:
            return None
        if self.low_effort and not self.refuses_effort and _ABOUT_EFFORT.search(text):
            return replace(self, low_effort=False, refuses_effort=True)
        if is_isolated and sent.system and _ABOUT_ROLES.search(text):
            return replace(self, takes_system=False)
        if not is_isolated and not sent.alternates and _ABOUT_ROLES.search(text):
            return replace(self, alternates=True)
        if sent.max_tokens > wanted and _ABOUT_LIMIT.search(text):
            return replace(self, refuses_room=True)
        return None

    def after_cut(self) -> AskedForm | None:
        """The form to ask in after an answer that reasoning has cut short: with more room, then with less effort."""
        if not self.thinks:
            return replace(self, thinks=True)
        if self.low_effort or self.refuses_effort:
            return None
        return replace(self, low_effort=True)


def first_form(headers: Headers, limit: str) -> AskedForm:
    """The form in which a model is asked that has taught nothing yet."""
    is_subscription = any(name == b"authorization" and value.startswith(_SUBSCRIPTION) for name, value in headers)
    return AskedForm(limit, clients_system=is_subscription)


def is_cut_by_reasoning(answer: Answer) -> bool:
    """Whether the limit ended an answer that had reasoning; where there is no text at all, that was hidden."""
    text = without_thoughts(answer.text)
    return answer.finish_reason == "length" and (answer.reasoned or text != answer.text or not text.strip())
