"""The report's page: everything is in it, nothing in it runs or is fetched, and each plot has its table."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from proxy.condensing.policy import Window
from proxy.plots import Bar, Line, bar_plot, line_plot
from proxy.reasons import Action
from proxy.replaying.measures import ReplayedConversation, ReplayedRequest, summarize
from proxy.replaying.report import ReplayResults, page

HOSTILE = '<script src="//evil.example/x.js">'
VOID = {"meta", "input", "br"}


class Tags(HTMLParser):
    """Collects the tags and attributes of a page, and those that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def replayed() -> ReplayResults:
    direct = ReplayedRequest(2_000, 2_000, 0, 0, 4_000, 1.0)
    ours = ReplayedRequest(2_000, 900, 0, 0, 4_000, 2.0, votes=5, yes_votes=3, action=Action.CONDENSED)
    played = {
        "off": [ReplayedConversation([direct] * 3, id=HOSTILE)],
        "half-window": [ReplayedConversation([direct, ours, ours], {"rules": (1, 2)}, HOSTILE)],
    }
    summaries = [summarize(name, each, direct=played["off"]) for name, each in played.items()]
    return ReplayResults(f"{HOSTILE}.json", 1, "", Window(8_192, "--window"), summaries, played=played)


def tags(text: str) -> Tags:
    read = Tags()
    read.feed(text)
    return read


def test_the_page_needs_nothing_and_runs_nothing_whatever_conversations_are_called() -> None:
    text = page(replayed())
    read = tags(text)

    assert read.open == []
    assert "script" not in read.names
    assert not read.attributes & {"src", "href", "style", "onclick", "onload"}
    assert "default-src 'none'" in text
    assert "&lt;script src=" in text


def test_every_plot_has_a_table_with_its_data() -> None:
    text = page(replayed())

    figures = re.findall("<figure>.*?</figure>", text, re.DOTALL)
    assert len(figures) > 8
    assert all("<table>" in each and "<svg" in each for each in figures)
    assert '<tr><th scope="row">2</th><td>2,000</td><td>900 ○</td></tr>' in text


def test_what_was_not_measured_is_said() -> None:
    assert "<h2>Evidence kept</h2><p" in page(replayed())


def test_the_rows_of_conversations_say_from_when_on_a_strategy_was_cheaper() -> None:
    assert "<td>request 2</td>" in page(replayed())
    assert "<td>never</td>" in page(replayed())


def test_a_refused_request_leaves_a_gap_in_its_line() -> None:
    plot = line_plot("Tokens", [Line("off", [1.0, None, 3.0, 4.0])], {}, "", unit="tokens")

    (path,) = re.findall(r' d="(M[^"]*L[^"]*)"', plot)
    assert path.count("M") == 2


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 0.5], [0.0, 0.0]])
def test_bars_of_any_values_stay_on_the_drawing(values: list[float]) -> None:
    bars = [Bar(str(value), value, value, value, "") for value in values]

    for x, width in re.findall(r'<rect [^>]*x="([^"]*)" y="\d+" width="([^"]*)"', bar_plot("Saved", "", bars)):
        assert 0 <= float(x) <= float(x) + float(width) <= 760


def test_a_replay_of_nothing_has_a_page_too() -> None:
    assert tags(page(replayed()._replace(played={}, summaries=[]))).open == []
