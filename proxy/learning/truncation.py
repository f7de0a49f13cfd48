"""Detects silent truncation: an upstream that answers, but has read only the newest part of the prompt. No I/O.

Its usage gives it away, by one of three signs. One sign proves nothing: a usage may leave out tokens from a cache, or
another tokenizer may have counted. So the first sign only makes a reply suspect, and nothing is learned from that
reply. A second sign on a longer request confirms the suspicion if the two counts are of like size, and not small beside
a prompt that was read whole before: a server keeps about as much of any prompt that is too long, while a count that
leaves something out follows what is new. Where nothing has calibrated our own count yet, counts that grow with the
requests are those of another tokenizer, and no sign.
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
    """The sign in a usage that the prompt was not read whole."""

    BELOW_PREFIX = "below-prefix"
    BELOW_ESTIMATE = "below-estimate"
    SAME_COUNT = "same-count"


class CountedReply(NamedTuple):
    """How one prompt was expected to be counted, and how the upstream has counted it; all in tokens."""

    expected: int
    """Our calibrated count of the prompt."""
    counted: int
    """The upstream's count."""
    prefix: int | None = None
    """The upstream's own count for the beginning of this prompt, if that is known."""
    calibrated: bool = True
    """Whether anything has been learned of the upstream's tokenizer."""
    exact: bool = True
    """Whether `expected` comes from a count, not from lengths."""
    own: int | None = None
    """Our count without calibration; None if it is the same.

    It alone tells which of two prompts is longer: what is sent between them may change how a prompt is expected to be
    counted.
    """

    def is_longer(self, other: CountedReply, times: float = 1.0) -> bool:
        """Whether this prompt is at least `times` as long as the other, and longer; False if that cannot be known."""
        ours, theirs = (each.expected if each.own is None else each.own for each in (self, other))
        return self.exact is other.exact and ours > theirs and ours >= theirs * times


class Suspicion(Enum):
    """The conclusion from a reply: the prompt was read whole, or may have been truncated, or was."""

    WHOLE = auto()
    SUSPECT = auto()
    CONFIRMED = auto()


class Judgement(NamedTuple):
    """The judgement of a reply."""

    suspicion: Suspicion
    sign: Sign | None = None
    """The sign that the reply gave, if any."""
    kept: int = 0
    """Tokens that the upstream keeps of a prompt, once that is confirmed."""


def sign_of(reply: CountedReply, last: CountedReply | None = None) -> Sign | None:
    """The sign of truncation in a reply, if there is one; `last` is the upstream's last reply for the same model."""
    if reply.prefix is not None and reply.counted < reply.prefix and reply.counted * LONGER <= reply.expected:
        return Sign.BELOW_PREFIX
    if reply.expected <= LEAST_ESTIMATE:
        return None
    if reply.counted < (SHARE if reply.exact else SHARE_OF_LENGTH) * reply.expected:
        return Sign.BELOW_ESTIMATE
    if last is not None and reply.counted == last.counted and reply.is_longer(last, LONGER):
        return Sign.SAME_COUNT
    # The last reply may be one of another conversation, so this prompt's own beginning is compared too.
    return Sign.SAME_COUNT if reply.counted == reply.prefix and reply.counted * LONGER <= reply.expected else None


def judge(
    reply: CountedReply, suspect: CountedReply | None, last: CountedReply | None = None, whole: int = 0
) -> Judgement:
    """Judges a reply, given the `suspect` one if there is one; up to `whole` tokens were read whole before."""
    sign = sign_of(reply, last)
    if sign is None:
        return Judgement(Suspicion.WHOLE)
    if suspect is not None and sign is Sign.BELOW_ESTIMATE and _grows_with_request(reply, suspect):
        is_clear = reply.expected >= CLEARLY_LONGER * suspect.expected
        return Judgement(Suspicion.WHOLE) if is_clear else Judgement(Suspicion.SUSPECT, sign)
    if suspect is None or not _confirms(reply, suspect, whole):
        return Judgement(Suspicion.SUSPECT, sign)
    return Judgement(Suspicion.CONFIRMED, sign, max(reply.counted, suspect.counted))


def suspect_after(reply: CountedReply, suspect: CountedReply | None) -> CountedReply:
    """The reply to compare later ones with: the earlier suspect, until a suspect one is clearly longer."""
    is_near = suspect is not None and suspect.expected < reply.expected < CLEARLY_LONGER * suspect.expected
    return suspect if suspect is not None and is_near and _grows_with_request(reply, suspect) else reply


def clears(reply: CountedReply, suspect: CountedReply) -> bool:
    """Whether a reply without a sign speaks against a suspicion.

    It does if its request was as long, or was counted as long, and more of it was read.
    """
    return max(reply.expected, reply.counted) >= suspect.expected and reply.counted >= suspect.counted * LONGER


def _grows_with_request(reply: CountedReply, suspect: CountedReply) -> bool:
    """Whether uncalibrated counts grow with the requests, as those of another tokenizer do."""
    if reply.calibrated or reply.expected <= suspect.expected or reply.counted < LEAST_RATIO * reply.expected:
        return False
    return reply.counted - suspect.counted >= WITH_REQUESTS * (reply.expected - suspect.expected)


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
    """The setting that raises a server's window, chosen by traces of the server: its address, headers, reply."""
    lowered = traces.lower()
    return next((setting for marks, setting in _SETTINGS if any(mark in lowered for mark in marks)), _ANY_SETTING)
