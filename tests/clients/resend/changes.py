"""Where a client resends another message than it got, and why no digest can or should hide that.

Each row says what was sent instead. Everything else in the golden files has the digest of the upstream's reply.
"""

from typing import NamedTuple


class Change(NamedTuple):
    """`ways` is empty where all ways of the client change the message alike."""

    client: str
    case: str
    reason: str
    ways: tuple[str, ...] = ()

    def covers(self, client: str, case: str, way: str) -> bool:
        return (self.client, self.case) == (client, case) and (not self.ways or way in self.ways)


_DOUBLES = (
    "parses arguments into JavaScript numbers: 12345678901234567890 comes back as 12345678901234567000. Reading all "
    "numbers as doubles would hide it, and would make calls equal whose 64-bit ids differ in their last digits"
)
_NO_INPUT = "replaces arguments that do not parse by {} and answers the call itself with the parser's error"

CHANGES = (
    Change("ai-sdk-openai", "big-number-in-a-call", _DOUBLES),
    Change("ai-sdk-openai-compatible", "big-number-in-a-call", _DOUBLES),
    Change("ai-sdk-openai", "broken-arguments", _NO_INPUT),
    Change("ai-sdk-openai-compatible", "broken-arguments", _NO_INPUT),
    Change("pydantic-ai", "broken-arguments", "wraps them as {'INVALID_JSON': …} and answers with a validation error"),
    Change(
        "langchain",
        "broken-arguments",
        "closes the open string and object while it adds up the chunks, so half a value goes back as a whole one",
        ("stream", "stream_output_version_v1"),
    ),
    Change("ai-sdk-openai", "refusal", "makes the refusal the content: the upstream now reads it as said text"),
    Change("ai-sdk-openai-compatible", "refusal", "resends no assistant message at all: two user messages follow"),
    Change("pydantic-ai", "refusal", "raises ContentFilterError, so nothing is resent"),
    Change(
        "litellm",
        "think-tags",
        "moves the thinking into reasoning_content, and keeps the blank lines after it",
        ("object", "model_dump", "json"),
    ),
    Change("pydantic-ai", "think-tags", "splits the thinking off and joins it again with blank lines of its own"),
)
