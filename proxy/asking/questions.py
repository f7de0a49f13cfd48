"""Questions: what a call of ours says, to whom, and with whose credential.

There are two forms. In the isolated form a question is a system and a user message, without tools. In the continued
form it is a view, byte for byte, and one more user message, to the request's own model with the request's own tools,
so that what the upstream has cached of the view is not computed again. Neither form sends sampling parameters unless
the settings have them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.http.headers import CREDENTIALS, Headers
from proxy.learning.profiles import ANY, Profile
from proxy.runtime.waiters import NOBODY, Waiters
from proxy.settings.tables import Mode, ModelRole
from strategies.core.effects import Ask, Ballot
from strategies.core.form import BRIDGE
from strategies.core.parsing import loads
from strategies.core.transcript import RESULT_ROLES

Roles = Mapping[str, ModelRole]

NEW_LIMIT = "max_completion_tokens"
OLD_LIMIT = "max_tokens"
_NO_TOOLS = re.compile(r"\s*(null|\[\s*\])\s*")


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf we ask: the model, the headers and the tools, as JSON text, of a request.

    `asked_at` is when that request came, in seconds since the epoch; `background` whether nobody waits for the answer.
    `profile` says what the server of that request takes, `mode` when calls may be made that nobody waits for; None
    leaves that to the settings. `waiters` are those who wait for what comes of it although its own request does not.
    """

    model: str
    headers: Headers
    tools: str | None = None
    asked_at: float = 0.0
    background: bool = False
    profile: Profile = ANY
    mode: Mode | None = None
    waiters: Waiters = NOBODY


@dataclass(frozen=True, slots=True)
class Question:
    """One call: `messages` and `tools` are JSON text, `n` answers of at most `max_tokens` each are wanted.

    `role` is the name under which its cost is told, `model` who is asked.
    """

    role: str
    model: ModelRole
    messages: str
    max_tokens: int
    tools: str | None = None
    n: int = 1

    def body(self, caller: Caller, limit: str) -> bytes:
        """The request's body, with the length of the answer under the name `limit`."""
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


def question(ask: Ask, roles: Roles, caller: Caller) -> Question:
    """The call that an `Ask` leads to."""
    if ask.view is None:
        return Question(ask.role, roles[ask.role], _isolated(ask), ask.max_tokens)
    # The upstream has the view in its cache for the model and the account of the request, and for no other.
    model = roles[ask.role].model_copy(update={"base_url": None, "api_key": None, "model": None})
    messages = continued(ask.view, ask.user, alternates=caller.profile.messages.alternate_roles)
    return Question(ask.role, model, messages, ask.max_tokens, caller.tools)


def vote(ballot: Ballot, roles: Roles, n: int = 1) -> Question:
    """The call that asks for `n` votes."""
    return Question(ballot.role, roles[ballot.role], _isolated(ballot), ballot.max_tokens, n=n)


def continued(view: str, text: str, *, alternates: bool = False) -> str:
    """A message list as JSON text with one more message of the user at its end.

    Where roles must alternate, one of the assistant's stands between it and what no user message may follow.
    """
    head = view.rstrip().removesuffix("]").rstrip()
    bridged = alternates and _last_role(view) in ("user", *RESULT_ROLES)
    added = [*([BRIDGE] if bridged else ()), {"role": "user", "content": text}]
    between = "" if head.endswith("[") else ","
    return f"{head}{between}{','.join(json.dumps(each) for each in added)}]"


def _last_role(view: str) -> str:
    messages = loads(view)
    return str(messages[-1].get("role")) if messages else ""


def _isolated(asked: Ask | Ballot) -> str:
    # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
    return json.dumps([{"role": "system", "content": asked.system}, {"role": "user", "content": asked.user}])


def headers_for(role: ModelRole, caller: Caller) -> Headers:
    """The credential for a call of ours: the role's own, else the caller's where it goes to the same place."""
    if role.api_key is not None:
        return [(b"authorization", b"Bearer " + role.api_key.get_secret_value().encode())]
    if role.base_url is not None:
        return []
    return [(name, value) for name, value in caller.headers if name in CREDENTIALS or name.startswith(b"openai-")]


def is_lent(headers: Headers, role: ModelRole) -> bool:
    """Whether what a call authenticates with is lent to us by the caller."""
    return role.api_key is None and any(name in CREDENTIALS for name, _ in headers)
