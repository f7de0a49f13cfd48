"""The content of one of the proxy's own calls: its messages, its model, and whose credential it carries.

There are two forms. In the isolated form a question is a system and a user message, without tools. In the continued
form it is a view, byte for byte, and one more user message, to the request's own model with the request's own tools,
so that the upstream's prompt cache of the view is used. Neither form sends sampling parameters unless the settings
have them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.http.headers import CREDENTIALS, Headers
from proxy.learning.profiles import ANY, Profile
from proxy.request.callers import ALWAYS, Trust
from proxy.runtime.owned_tasks import NOBODY, Waiters
from proxy.settings.tables import Mode, ModelRole
from strategies.core.effects import Ask, Ballot
from strategies.core.messages import RESULT_ROLES
from strategies.core.parsing import loads
from strategies.core.shaping import BRIDGE

Roles = Mapping[str, ModelRole]

NEW_LIMIT = "max_completion_tokens"
OLD_LIMIT = "max_tokens"
_NO_TOOLS = re.compile(r"\s*(null|\[\s*\])\s*")


@dataclass(frozen=True, slots=True)
class Caller:
    """The client's request on whose behalf a call is made."""

    model: str
    headers: Headers
    """The request's headers, of which the credential is used."""
    tools: str | None = None
    """The request's tools as JSON text."""
    asked_at: float = 0.0
    """When the request came, in seconds since the epoch."""
    trust: Trust = ALWAYS
    """Whether the upstream has accepted the request's credential."""
    background: bool = False
    """Whether the request does not wait for the answer."""
    profile: Profile = ANY
    """The message forms and parameters that the request's server accepts."""
    mode: Mode | None = None
    """When background calls may be made; None leaves that to the settings."""
    waiters: Waiters = NOBODY
    """Other requests that have come to wait for the result of a background call."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The content of one call."""

    role: str
    """The name under which its cost is reported."""
    model: ModelRole
    """Which model is asked, and where."""
    messages: str
    """The message list as JSON text."""
    max_tokens: int
    """The maximum number of tokens of one answer."""
    tools: str | None = None
    """The tools as JSON text, sent with `tool_choice` "none"."""
    n: int = 1
    """The number of answers."""

    def body(self, caller: Caller, limit: str) -> bytes:
        """The request's body, with the bound on the answer's length under the name `limit`."""
        members = {"model": json.dumps(self.model.model or caller.model), "messages": self.messages}
        if self.tools is not None:
            members["tools"] = self.tools
            if not _NO_TOOLS.fullmatch(self.tools):
                members["tool_choice"] = '"none"'
        if self.n > 1:
            members["n"] = str(self.n)
        if self.model.temperature is not None:
            members["temperature"] = json.dumps(self.model.temperature)
        members[limit] = str(min(self.max_tokens, self.model.max_tokens or self.max_tokens))
        return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


def question_for(ask: Ask, roles: Roles, caller: Caller) -> ModelCall:
    """The question that an `Ask` puts."""
    if ask.view is None:
        return ModelCall(ask.role, roles[ask.role], _isolated(ask), ask.max_tokens)
    # The upstream has cached the view for the model and the account of the request only.
    model = roles[ask.role].model_copy(update={"base_url": None, "api_key": None, "model": None})
    messages = with_user_message(ask.view, ask.user, alternates=caller.profile.alternate_roles)
    return ModelCall(ask.role, model, messages, ask.max_tokens, caller.tools)


def vote_question(ballot: Ballot, roles: Roles, n: int = 1) -> ModelCall:
    """The question that asks for `n` votes."""
    return ModelCall(ballot.role, roles[ballot.role], _isolated(ballot), ballot.max_tokens, n=n)


def with_user_message(view: str, text: str, *, alternates: bool = False) -> str:
    """A message list as JSON text with one more user message at its end.

    Where roles must alternate, an assistant message is put before it if the last one is the user's or a tool's.
    """
    head = view.rstrip().removesuffix("]").rstrip()
    bridged = alternates and _last_role(view) in ("user", *RESULT_ROLES)
    added = [*([BRIDGE] if bridged else ()), {"role": "user", "content": text}]
    between = "" if head.endswith("[") else ","
    return f"{head}{between}{','.join(json.dumps(each) for each in added)}]"


def _last_role(view: str) -> str:
    messages = loads(view)
    return str(messages[-1].get("role")) if messages else ""


def _isolated(effect: Ask | Ballot) -> str:
    # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
    return json.dumps([{"role": "system", "content": effect.system}, {"role": "user", "content": effect.user}])


def headers_for(role: ModelRole, caller: Caller) -> Headers:
    """The credential for a call: the role's own, else the caller's if the call goes to the upstream itself."""
    if role.api_key is not None:
        return [(b"authorization", b"Bearer " + role.api_key.get_secret_value().encode())]
    if role.base_url is not None:
        return []
    return [(name, value) for name, value in caller.headers if name in CREDENTIALS or name.startswith(b"openai-")]


def is_lent(headers: Headers, role: ModelRole) -> bool:
    """Whether a call authenticates with the caller's credential."""
    return role.api_key is None and any(name in CREDENTIALS for name, _ in headers)
