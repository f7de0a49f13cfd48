"""Tags in a model's answer, `<name>…</name>`: finds them in one pass, however many are never closed."""

from __future__ import annotations

from collections.abc import Iterator


def tag_contents(text: str, name: str) -> Iterator[str]:
    """Yields the text inside each pair of tags, in order; an opening tag inside a pair is text."""
    for start, end in _pairs(text, name):
        yield text[start + len(name) + 2 : end - len(name) - 3]


def without_tags(text: str, name: str) -> str:
    """The text without its pairs of tags and the text inside them."""
    kept, behind = [], 0
    for start, end in _pairs(text, name):
        kept.append(text[behind:start])
        behind = end
    return "".join((*kept, text[behind:]))


def _pairs(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Yields where each pair begins and ends, tags included."""
    opening, closing = f"<{name}>", f"</{name}>"
    end = 0
    while (start := text.find(opening, end)) >= 0:
        closed = text.find(closing, start + len(opening))
        if closed < 0:
            return
        end = closed + len(closing)
        yield start, end
