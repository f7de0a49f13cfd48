"""Reasoning: what a model thought, which clients send back with their messages, and when it may not be sent on.

Some servers sign reasoning and bind it to all that stood before it: behind another list they refuse it. Others want the
reasoning of every message with calls back, whatever stands before it. The rest do not care. So each server has a rule:

    BOUND      reasoning leaves a view whose beginning is another than the one that it was thought behind
    REQUIRED   reasoning never leaves a view
    none       signed reasoning is bound, and all other reasoning is kept

The settings give the rule (`upstream.profile.reasoning`), or a refusal that names it teaches it (`rule_named_in`). A
dialect knows the signed parts (`Reading.is_signed`, `Dialect.unbound`).

A view begins with a *head*: the pieces of a condensation, or, if nothing is condensed, the client's own messages. A
branch remembers the head of its last view and how long the chain was when that head was first sent (`Bound`). Reasoning
from there on was thought behind this head, and stays. Earlier reasoning was thought behind another head, and leaves. So
a condensation costs the reasoning up to it, once; and so does each view without the head that stood before, because of
a larger window, of `off`, or of a condensation that was reverted. An opaque head, which is the server's own, costs
nothing of what was kept: the server knows what it stands for.

A branch may not know its last head: the session was deleted, the store is down, or a reply came in an outage. Then the
upstream refuses, and the request is sent once more without any reasoning that may be bound. The branch remembers that
as it remembers a new head.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BOUND, REQUIRED = "bound", "required"

OWN = ""  # the head of a view that begins as the client's own list
UNKNOWN = "?"  # a head that no view has: whatever the branch thought, it may have thought it behind another one


class Bound(NamedTuple):
    """What the reasoning of a branch is bound to."""

    head: str = OWN  # names the head of its last view
    until: int = 0
    """The length of the chain when that head was first sent. Reasoning before that is bound to another head."""

    def behind(self, head: str, length: int, kept_from: int | None = None) -> Bound:
        """The same after a view of `length` chain messages behind a head; the view keeps reasoning from `until` on.

        `kept_from` is given if that head is opaque and was made of the last view: what it kept begins at this index.
        """
        if head == self.head:
            return Bound(head, min(self.until, length))
        return Bound(head, length if kept_from is None else min(max(self.until, kept_from), length))


# -- what refusals say ---------------------------------------------------------------------------------------------

_REASONING = re.compile(r"reasoning|thinking|thought|思考|推理", re.IGNORECASE)
_PARAMETER = re.compile(  # words of errors about the member of a request that switches reasoning on
    r"budget|effort|temperature|tool_choice|max_tokens|extra inputs|(?:thinking|reasoning)\.(?:type|enabled)"
    r"|to be disabled|not (?:supported|permitted|allowed|enabled)|unsupported|unknown|unrecogni[sz]ed|invalid value",
    re.IGNORECASE,
)
_WORDS = {
    BOUND: (
        r"(?<!thought[ _-])signature|corrupt|invalid thought|bound to|prefix|tamper|\b(?:modif|alter)(?:y|ied|ed)\b"
        r"|签名|thought[ _-]?signature[^.]{0,60}(?:not valid|invalid|mismatch|fail|verif)"
        r"|(?:different|another|other|not belong\w*(?: to)?(?: th\w+)?) (?:conversation|context|prompt|history|request)"
    ),
    REQUIRED: (
        r"missing|\b(?:must|should|lacks?|requires?|required|expected|needs?|ha(?:s|ve) to)\b|without|omitted"
        r"|absent|not (?:found|present|provided|included|passed|sent|returned)|必须|需要|缺少|缺失|回传|传回"
    ),
}
_RULES = {rule: re.compile(words, re.IGNORECASE) for rule, words in _WORDS.items()}


def rule_named_in(error: str) -> str | None:
    """The rule for reasoning that an error names; None if it is about something else.

    The error answers a request that has reasoning in its messages. The lesson holds for one tenant, and the next
    refusal corrects it; so the words need not be exact.
    """
    if not _REASONING.search(error) or _PARAMETER.search(error):
        return None
    return next((rule for rule, words in _RULES.items() if words.search(error)), None)
