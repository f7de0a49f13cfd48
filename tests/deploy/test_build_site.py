"""The site: every document is a page that can be found, and links lead to where the pages are there."""

import re
from pathlib import Path
from posixpath import join, normpath

from deploy.build_site import DOCS, INDEX, built_pages, foreign, in_order, llms_txt, navigation
from tests.deploy.repository import ROOT


def test_every_document_is_in_the_navigation_and_in_llms_txt_with_a_sentence() -> None:
    pages = built_pages()
    listed, told = navigation([*pages]), llms_txt(pages)
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} < {*pages}
    assert re.findall(r'"([^"]+\.md)"', listed) == [*pages]
    lines = dict(re.findall(r"^- \[.+\]\((\S+)\): ?(.*)$", told, re.MULTILINE))
    assert list(lines) == [*pages]
    assert [name for name, sentence in lines.items() if len(sentence.split()) < 3 or "](" in sentence] == [], (
        "these begin with no sentence"
    )


def test_no_page_links_to_what_the_site_does_not_have() -> None:
    pages = built_pages()
    there = {*pages, *(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.*"))}
    for name, text in pages.items():
        links = re.findall(r"\]\(([^)\s#]+)", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))
        assert {normpath(join(name, "..", link)) for link in links if "://" not in link} <= there, name


def test_pages_stand_in_the_order_of_the_index_within_their_folders() -> None:
    pages = {INDEX: "# I\n[b](guides/b.md#x) [r](reference/r.md) [a](guides/a.md)"}
    rest = ["guides/a.md", "guides/b.md", "guides/clients/c.md", "guides/z.md", "other/o.md", "reference/r.md"]
    names = in_order({**pages, **dict.fromkeys(rest, "# P")})
    assert names == [INDEX, "guides/b.md", "guides/a.md", *rest[2:4], "reference/r.md", "other/o.md"]
    assert '{ "Guides" = ["guides/b.md", "guides/a.md", { "Clients" = [' in navigation(names)


def test_what_a_page_would_load_from_another_host_is_found(tmp_path: Path) -> None:
    own = '<link rel="canonical" href="https://a.test/"><a href="https://a.test/">a</a><script src="a.js"></script>'
    (tmp_path / "own.html").write_text(own)
    assert foreign(tmp_path) == []
    (tmp_path / "page.html").write_text('<script src="https://a.test/x.js"></script>')
    (tmp_path / "style.css").write_text("@import url(//a.test/font.css);")
    assert len(foreign(tmp_path)) == 2


def test_the_built_site_is_no_part_of_the_repository() -> None:
    assert "/site/" in (ROOT / ".gitignore").read_text().splitlines()
