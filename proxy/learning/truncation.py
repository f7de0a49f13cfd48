"""Proves silent truncation: an upstream that answers, but has read only the newest part of the prompt. No I/O.

A count that is merely lower than ours proves nothing: it may come from another tokenizer, or from cheaper images.
Truncation has two proofs: the upstream counts the same for three prompts of clearly different length, and has never
counted more; or it counts a clearly longer prompt as exactly the window that its server reports as loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_REPLIES = 16
"""The latest replies of a model that are compared."""
PROMPTS = 3
"""Prompts of clearly different length that must have been counted the same."""
CLEARLY = 1.05
"""A prompt is clearly longer than another if it has this many times its tokens."""
MIN_KEPT = 1_024
"""Tokens; no server is started with a smaller window, and a smaller constant count is invented."""
MAX_FOR_ONE = 2
"""Tokens of an upstream for one of ours, at most; a server that counts more for a prompt has invented its count."""


class CountedReply(NamedTuple):
    """One prompt, counted by us and by the upstream."""

    own: int
    """Our own count, without calibration."""
    counted: int
    """The upstream's count."""
    exact: bool = True
    """Whether ours is a count, not an estimate by length."""


def kept_by(replies: Sequence[CountedReply], highest: int = 0, loaded: int | None = None) -> int | None:
    """The tokens that an upstream keeps of a longer prompt; None unless its latest replies prove that it truncates.

    The replies are those to one model, oldest first; `highest` is the highest count that the upstream has ever given
    for the model, `loaded` the window that its server reports.
    """
    last = replies[-1]
    if last.counted == loaded and last.own >= CLEARLY * last.counted:
        return loaded
    if last.counted < max(highest, MIN_KEPT):
        return None
    lengths = sorted(each.own for each in replies if (each.counted, each.exact) == (last.counted, last.exact))
    is_possible = lengths[0] * MAX_FOR_ONE >= last.counted
    return last.counted if is_possible and _clearly_different(lengths) >= PROMPTS else None


def _clearly_different(lengths: Sequence[int]) -> int:
    """How many of these lengths, shortest first, are clearly longer than the one counted before."""
    number, longest = 0, 0
    for length in lengths:
        if length >= CLEARLY * longest:
            number, longest = number + 1, length
    return number


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
