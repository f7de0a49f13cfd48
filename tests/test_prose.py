"""The pages of users are in plain English: short sentences, no habits that make a reader stop."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import DOCS, DOCUMENTS, ROOT, relative, without_code

MOST_WORDS = 40
MOST_WORDS_IN_ALL = 30_000
HABITS = (
    "of ours", "in order to", "please note", "simply", "utilize", "leverage", "e.g.", "i.e.", "and/or", "seamless",
    "robust", "powerful", "as well as", "respectively", "with regard to", "in the case of", "due to the fact",
    "it should be noted", "under the hood", "out of the box", "best practice",
)  # fmt: skip
INTERNALS = (DOCS / "internals", DOCS / "decisions")
PAGES = [
    page
    for page in DOCUMENTS
    if page == ROOT / "README.md" or (page.is_relative_to(DOCS) and not any(map(page.is_relative_to, INTERNALS)))
]


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, without code, comments and the addresses of links."""
    text = re.sub(r"<!--.*?-->|^    .*$", "", without_code(text), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|#+|\|)\s?)", text):
        yield from part.strip().strip("|").split("|") if part.lstrip().startswith("|") else [part]


def sentences(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_sentences_are_short(page: Path) -> None:
    found = [each for each in sentences(page.read_text("utf-8")) if len(each.split()) > MOST_WORDS]
    assert not found, f"over {MOST_WORDS} words"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_no_habit_of_bad_prose_is_left(page: Path) -> None:
    text = " ".join(without_code(page.read_text("utf-8")).lower().split())
    assert [habit for habit in HABITS if re.search(rf"(?<!\w){re.escape(habit)}(?!\w)", text)] == []


def test_the_pages_of_users_are_no_more_than_can_be_read() -> None:
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= MOST_WORDS_IN_ALL
