"""Every block of the guides that is a program or a command runs, or says why not; every block of settings is read."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.clients.guides import CLIENT_PAGES, INDEX, PROGRAMS, Block, Guides, blocks, page_of, pages, run_shell, said
from tests.test_docs import relative, rows

READ: dict[str, Callable[[str], object]] = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
SHOWN = ("", "text", "console", "http")  # what is shown: output, and a session at a terminal
ELSEWHERE = {
    name: file
    for file in sorted(Path(__file__).parent.glob("test_*.py"))
    for name in re.findall(r"(?:guide|page_of)\(\"([\w-]+)\"", file.read_text("utf-8"))
}
"""Clients whose page is run in the file that has imported them."""


def to_run(page: Path) -> list[Block]:
    return [each for each in blocks(page) if each.language in PROGRAMS and each.excuse is None]


def in_index() -> dict[str, str]:
    """Whether each client's page is run, in the words of the index."""
    found = ((re.search(r"\(([\w-]+)\.md\)", row["client"]), row) for row in rows(INDEX.read_text("utf-8")))
    return {name[1]: row["run by a test"] for name, row in found if name}


def test_the_index_lists_the_pages_and_says_of_each_whether_it_is_run() -> None:
    listed = in_index()
    assert sorted(listed) == sorted(page.stem for page in CLIENT_PAGES.glob("*.md") if page != INDEX)
    for name, answer in listed.items():
        excused = [each.excuse for each in blocks(page_of(name)) if each.excuse]
        assert answer.startswith("yes") is bool(to_run(page_of(name))), name
        assert not excused or "not run by a test" in said(page_of(name)).lower(), f"{name}: tell the reader too"


@pytest.mark.parametrize("page", pages(), ids=relative)
def test_a_block_of_a_guide_is_a_program_or_settings_or_is_shown(page: Path) -> None:
    for block in blocks(page):
        assert block.language in (*PROGRAMS, *READ, *SHOWN), block
        READ.get(block.language, str)(block.text)
    assert page.read_text("utf-8").count("<!-- not run") == sum(each.excuse is not None for each in blocks(page))


def is_run_here(page: Path) -> bool:
    return bool(to_run(page)) and not (page.parent == CLIENT_PAGES and page.stem in ELSEWHERE)


@pytest.mark.parametrize("page", [*filter(is_run_here, pages())], ids=relative)
def test_a_guide_runs_as_it_is_written(page: Path, guide: Guides) -> None:
    guide(page.stem) if page.parent == CLIENT_PAGES else guide.run(page)


def test_a_guide_for_administrators_does_nothing_to_this_machine(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"rm: .*not found"):
        run_shell("cd . && rm -f kept", tmp_path)
