"""Builds the documents as a site with search, in site/: `build_site.py ZENSICAL`.

The files are written to be read on GitHub. Here each becomes a page: links to files that are no pages become text,
the navigation follows the folders, in the order in which docs/index.md links to their pages, and llms.txt names every
page with its first sentence. It fails if a link or an anchor leads nowhere, or if a page would load anything from
another host.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from os.path import relpath
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
DOCS, INDEX, SITE = ROOT / "docs", "index.md", ROOT / "site"
_BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "tests/README.md")
_CODE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*canonical)[^>]*\bhref=["']?(?:https?:)?//|(?:@import|url\()\s*["']?(?:https?:)?//"""
)
_NO_PROSE = ("#", "|", "![", "<", "- ", "* ", "> ")
_UNSEARCHED = (
    "---\nsearch:\n  exclude: true\n---\n"  # decisions would stand before what users look for; the design names all
)


def places() -> dict[Path, str]:
    """The files that become pages, each with its place in the site."""
    own = {path: path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))}
    return own | {ROOT / name: f"project/{name.lower().replace('/readme', '')}" for name in _BESIDE}


def page(path: Path, of: Mapping[Path, str]) -> str:
    """The text of a page, with links to where the others are in the site."""

    def changed(found: re.Match[str]) -> str:
        picture, said, link = found.groups()
        file, sign, anchor = link.partition("#")
        if "://" in link or not file:
            return found[0]
        target = (path.parent / file).resolve()
        there = of.get(target) or (target.relative_to(DOCS).as_posix() if picture else "")
        return f"{picture}[{said}]({relpath(there, Path(of[path]).parent)}{sign}{anchor})" if there else said

    parts = _CODE.split(path.read_text("utf-8"))
    return "".join(part if place % 2 else _LINK.sub(changed, part) for place, part in enumerate(parts))


def in_order(pages: Mapping[str, str]) -> list[str]:
    """The pages in the order in which the index links to them; what it does not name comes behind its folder's."""
    linked = [link.partition("#")[0] for _, _, link in _LINK.findall(pages[INDEX])]
    first = {link: number for number, link in reversed(list(enumerate(linked)))}

    def rank(name: str) -> list[tuple[float, str]]:
        """A key of each folder on the way to a page, and of the page itself."""
        parts = name.split("/")
        ways = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        return [
            (min((n for link, n in first.items() if f"{link}/".startswith(f"{way}/")), default=1e9), way)
            for way in ways
        ]

    return sorted(pages, key=lambda name: (name != INDEX, name.startswith("project/"), rank(name)))


def navigation(names: Sequence[str], depth: int = 0) -> str:
    """The pages as a list in TOML, with a section for each folder; names in one folder follow each other."""
    entries = []
    for part, found in groupby(names, lambda name: name.split("/")[depth]):
        inside = [*found]
        is_page = inside[0].count("/") == depth
        section = "" if is_page else f"{{ {json.dumps(title(part))} = {navigation(inside, depth + 1)} }}"
        entries.append(section or json.dumps(inside[0]))
    return f"[{', '.join(entries)}]"


def title(folder: str) -> str:
    return folder.replace("-", " ").capitalize()


def heading(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found, "a page begins with its heading"
    return found[1].replace("`", "")


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph that is text, without marks of links."""
    bare = re.sub(r"<!--.*?-->", "", _CODE.sub("", text), flags=re.DOTALL)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", bare)]
    prose = next((part for part in paragraphs if part and not part.startswith(_NO_PROSE)), "")
    sentence = re.match(r".+?[.!?](?=\s|$)", prose)
    return _LINK.sub(r"\2", sentence[0] if sentence else prose).replace("**", "")


def llms_txt(pages: Mapping[str, str]) -> str:
    lines, section = [f"# {heading(pages[INDEX])}", "", f"> {first_sentence(pages[INDEX])}"], None
    for name, text in pages.items():
        folder = name.rpartition("/")[0]
        if folder != section:
            lines += ["", f"## {' / '.join(map(title, folder.split('/'))) or 'Documents'}", ""]
            section = folder
        lines.append(f"- [{heading(text)}]({name}): {first_sentence(text)}")
    return "\n".join([*lines, ""])


def built_pages() -> dict[str, str]:
    """All pages in order: place in the site, and text."""
    of = places()
    pages = {place: page(path, of) for path, place in of.items()}
    return {name: pages[name] for name in in_order(pages)}


def foreign(site: Path) -> list[str]:
    """What the pages and styles of a built site would load from another host."""
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    return [
        f"{path.relative_to(site)}: {found[0]}" for path in files for found in _LOADS.finditer(path.read_text("utf-8"))
    ]


def main(zensical: str) -> int:
    pages = built_pages()
    with TemporaryDirectory() as folder:
        work = Path(folder)
        docs, site, settings = work / "docs", work / "site", work / "zensical.toml"
        shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("*.md"))
        shutil.copy2(ROOT / "deploy" / "site.css", docs)
        for name, text in pages.items():
            (docs / name).parent.mkdir(parents=True, exist_ok=True)
            (docs / name).write_text(_UNSEARCHED * name.startswith("decisions/") + text, "utf-8")
        fixed = (ROOT / "deploy" / "site.toml").read_text("utf-8")
        settings.write_text(fixed.replace("[project]", f"[project]\nnav = {navigation([*pages])}", 1), "utf-8")
        if subprocess.run([Path(zensical).absolute(), "build", "--strict"], cwd=work, check=False).returncode:
            return 1
        for name, text in pages.items():
            (site / name).write_text(text, "utf-8")  # llms.txt names these
        (site / "llms.txt").write_text(llms_txt(pages), "utf-8")
        if loads := foreign(site):
            print("these pages load from another host:", *loads, sep="\n  ", file=sys.stderr)
            return 1
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.copytree(site, SITE)
    print(f"{len(pages)} pages are in site/: python3 -m http.server --directory site")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
