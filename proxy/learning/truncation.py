"""Silent truncation: an upstream that answers well and has read only the newest part of what was sent. Pure.

Its usage gives it away, in one of three signs. One sign proves nothing: a usage may leave out what came from a cache,
a count may be of another tokenizer. So the first one only makes a reply suspect, and nothing is learned from that
reply. A second sign on a longer request confirms it where both counts are of one size, and not small beside what was
read whole before: a server keeps about as much of any prompt that is too long, while counts that leave something out
go with what is new. Where nothing has calibrated our own count yet, counts that grow as the requests do are those of
another tokenizer, and no sign.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import NamedTuple

SHARE = 0.70  # of a calibrated count; less than that was not read whole
SHARE_OF_LENGTH = 0.35  # of a count by length alone, which may be almost twice the true one
LEAST_ESTIMATE = 1_500  # tokens; below, framing and hidden prompts are too large a part of a count
LEAST_KEPT = 1_024  # tokens; servers are started with 2,048 at the least, and none keeps less than half of that
ALIKE = 0.5  # of the larger count; a server keeps whole messages, so what it keeps varies by a message
OF_WHOLE = 0.45  # of the longest prompt that was read whole; some servers cut down to half of their window
LONGER = 1.02  # times other tokens: by more than what counts differ
LEAST_RATIO = 0.5  # of an upstream's count to ours; no tokenizer makes fewer of a text
WITH_REQUESTS = 0.35  # of what a request is longer, counted more: half of what such a tokenizer makes of it
CLEARLY_LONGER = (
    1.1  # times the tokens of the request before: by more than the messages that make a server's count vary
)


class Sign(StrEnum):
    """What in a usage says that the prompt was not read whole."""

    BELOW_PREFIX = "below-prefix"
    BELOW_ESTIMATE = "below-estimate"
    SAME_COUNT = "same-count"


class CountedReply(NamedTuple):
    """Tokens of one request: as they were `sent` by our calibrated count, and as the upstream has `counted` them.

    `prefix` is what the upstream itself had counted for the beginning of this prompt, where that is known. Where
    nothing was learned of the upstream's tokenizer yet, our count is not `calibrated`; one by length is not `exact`.
    `own` is our count as it is without that; None where it is the same. It alone tells which of two prompts is longer:
    what is sent between them may change how the same prompt is expected to be counted.
    """

    sent: int
    counted: int
    prefix: int | None = None
    calibrated: bool = True
    exact: bool = True
    own: int | None = None

    def is_longer(self, other: CountedReply, times: float = 1.0) -> bool:
        """Whether this prompt is that many `times` as long as another, or more; False where that cannot be known."""
        ours, theirs = (each.sent if each.own is None else each.own for each in (self, other))
        return self.exact is other.exact and ours > theirs and ours >= theirs * times


class Suspicion(Enum):
    """What a reply says of its upstream."""

    WHOLE = auto()
    SUSPECT = auto()
    CONFIRMED = auto()


class Judged(NamedTuple):
    """The standing after a reply, the sign that it gave, and the tokens that are kept of a prompt once confirmed."""

    standing: Suspicion
    sign: Sign | None = None
    kept: int = 0


def sign_of(reply: CountedReply, last: CountedReply | None = None) -> Sign | None:
    """The sign of truncation in a reply, after the `last` one of the same upstream and model; None without one."""
    if reply.prefix is not None and reply.counted < reply.prefix and reply.counted * LONGER <= reply.sent:
        return Sign.BELOW_PREFIX
    if reply.sent <= LEAST_ESTIMATE:
        return None
    if reply.counted < (SHARE if reply.exact else SHARE_OF_LENGTH) * reply.sent:
        return Sign.BELOW_ESTIMATE
    if last is not None and reply.counted == last.counted and reply.is_longer(last, LONGER):
        return Sign.SAME_COUNT
    # Its own beginning had that count too; the last reply may be one of another conversation.
    return Sign.SAME_COUNT if reply.counted == reply.prefix and reply.counted * LONGER <= reply.sent else None


def judged(
    reply: CountedReply, suspect: CountedReply | None, last: CountedReply | None = None, whole: int = 0
) -> Judged:
    """What a reply says, after the `suspect` one if there is one, where up to `whole` tokens were read whole before."""
    sign = sign_of(reply, last)
    if sign is None:
        return Judged(Suspicion.WHOLE)
    if suspect is not None and sign is Sign.BELOW_ESTIMATE and _goes_along(reply, suspect):
        is_clear = reply.sent >= CLEARLY_LONGER * suspect.sent
        return Judged(Suspicion.WHOLE) if is_clear else Judged(Suspicion.SUSPECT, sign)
    if suspect is None or not _confirms(reply, suspect, whole):
        return Judged(Suspicion.SUSPECT, sign)
    return Judged(Suspicion.CONFIRMED, sign, max(reply.counted, suspect.counted))


def suspected(reply: CountedReply, suspect: CountedReply | None) -> CountedReply:
    """The reply that later ones are held against after a suspect one: the earlier, until one is clearly longer."""
    is_near = suspect is not None and suspect.sent < reply.sent < CLEARLY_LONGER * suspect.sent
    return suspect if suspect is not None and is_near and _goes_along(reply, suspect) else reply


def clears(reply: CountedReply, suspect: CountedReply) -> bool:
    """Whether a reply that gave no sign speaks against a suspicion: its request was as long, or was counted so, and
    more was read of it."""
    return max(reply.sent, reply.counted) >= suspect.sent and reply.counted >= suspect.counted * LONGER


def _goes_along(reply: CountedReply, suspect: CountedReply) -> bool:
    """Whether counts that nothing is known of grow with the requests, as those of another tokenizer do."""
    if reply.calibrated or reply.sent <= suspect.sent or reply.counted < LEAST_RATIO * reply.sent:
        return False
    return reply.counted - suspect.counted >= WITH_REQUESTS * (reply.sent - suspect.sent)


def _confirms(reply: CountedReply, suspect: CountedReply, whole: int) -> bool:
    fewer, more = sorted((reply.counted, suspect.counted))
    return reply.is_longer(suspect) and fewer >= max(LEAST_KEPT, ALIKE * more, OF_WHOLE * whole)


_SETTINGS = (
    (("fp_ollama", ":11434", "ollama"), "num_ctx of the model, or OLLAMA_CONTEXT_LENGTH of the server (Ollama)"),
    ((":1234", "lm studio", "lmstudio"), "the context length that the model is loaded with (LM Studio)"),
    (("llama.cpp", "llama-server"), "--ctx-size divided by --parallel (llama.cpp)"),
    (("vllm",), "--max-model-len (vLLM)"),
    (("sglang",), "--context-length (SGLang)"),
)
_ANY_SETTING = "num_ctx (Ollama), --ctx-size (llama.cpp), the loaded context length (LM Studio), --max-model-len (vLLM)"


def setting_of(traces: str) -> str:
    """The setting that raises the window of a server, by what it has let us know of itself: address, headers, reply."""
    said = traces.lower()
    return next((setting for marks, setting in _SETTINGS if any(mark in said for mark in marks)), _ANY_SETTING)
