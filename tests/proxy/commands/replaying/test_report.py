"""Replayed conversations in figures: measures, tables, and a page that needs and runs nothing."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from proxy.commands.replaying.measures import (
    ForwardedMessage,
    ReplayedConversation,
    ReplayedRequest,
    Share,
    cheaper_from,
    common_prefix,
    summarize,
)
from proxy.commands.replaying.recorded import Question
from proxy.commands.replaying.report import ReplayResults, document, grid, markdown, page, table, verdict
from proxy.condensing.policy import RATIOS
from proxy.operator.plots import Bar, Line, bar_plot, line_plot
from proxy.reasons import Action
from proxy.servers.windows import Window
from strategies.core.economics import Prices

SUMMARY = summarize(
    "mask+half-window", [ReplayedConversation([ReplayedRequest(2_000, 1_500, 0, 0, 4_000, 1.25, own_tokens=100)])]
)
REPLAYED = ReplayResults(
    "talk.json", 1, "gpt-4o", Window(8_192, "--window"), [replace(SUMMARY, strategy="off"), SUMMARY]
)


def test_figures_are_told_in_a_table_and_as_json() -> None:
    first, second = (block.splitlines() for block in table(REPLAYED).split("\n\n")[2:4])
    assert first[0].split() == ["strategy", "requests", "saved", "tokens"]
    assert first[3].split() == ["mask+half-window", "1", "500"]
    assert second[0].split() == ["strategy", "tokens", "sent", "own", "tokens", "cached", "ms", "median"]
    assert second[3].split() == ["mask+half-window", "1,500", "100", "0.0%", "1.2"]
    degraded = replace(SUMMARY, degraded=2)
    assert "mask+half-window: 2 requests were degraded" in table(REPLAYED._replace(summaries=[SUMMARY, degraded]))
    assert "degraded" not in table(REPLAYED)
    read = json.loads(json.dumps(document(REPLAYED)))
    assert (read["window"], read["window_source"], read["summarizer"]) == (8_192, "--window", "scripted")
    assert [each["strategy"] for each in read["strategies"]] == ["off", "mask+half-window"]
    assert read["strategies"][1]["forwarded"] == 1_500


def test_columns_and_their_meaning_are_shown_where_there_is_something_to_show() -> None:
    text = table(REPLAYED)
    assert "evidence" not in text
    assert "votes" not in text
    kept = replace(SUMMARY, evidence_share=0.5, names_share=1.0, said_share=1.0, yes_share=0.7, votes=999)
    counted = replace(kept, forwarded=99_999_999, own=9_999_999, saved_tokens=99_999_999, condensations=9_999)
    money = replace(counted, saved_cost=9_999.0, paid_cost=999.0, net_share=Share(-1.111, -2.222, -0.111))
    full = replace(money, rescued=99_999, unanswered=99_999)
    text = table(REPLAYED._replace(summaries=[SUMMARY, full], costs=Prices(3.0, 0.3, 3.75), prices="the prices of m"))
    assert max(map(len, text.splitlines())) <= 120
    assert "evidence: questions" in text
    assert "saved USD  paid USD" in text


def request(sent: int, forwarded: int | None, shared: int = 0, own: int = 0) -> ReplayedRequest:
    return ReplayedRequest(sent, forwarded, shared, 0, 900, 1.0, own_tokens=own, window_tokens=1_000)


def balanced(*ours: ReplayedRequest, costs: Prices = RATIOS, names: tuple[str, ...] = ("mask",)) -> ReplayResults:
    before = [0, *(one.sent_tokens for one in ours)]
    direct = [request(one.sent_tokens, one.sent_tokens, shared) for one, shared in zip(ours, before, strict=False)]
    played = {"off": [ReplayedConversation(direct)], **{name: [ReplayedConversation(ours)] for name in names}}
    summaries = [summarize(name, each, costs, played["off"]) for name, each in played.items()]
    return ReplayResults("f", 1, "", Window(1_000, "--window"), summaries, played=played, costs=costs)


PRICES = Prices(input=2.0, cached_input=1.0, cache_write=2.0, output=2.0)


def test_rescued_saved_and_paid_are_apart() -> None:
    """Nobody could have spent what does not fit, so it is no saving."""
    replayed = balanced(request(400, 400), request(500, 300, own=50), request(2_000, 500, 300), request(3_000, None))
    ours = replayed.summaries[1]
    assert (ours.fitting, ours.rescued, ours.unanswered, ours.saved_tokens) == (2, 1, 1, 200)
    # Of the 300 tokens of the second prompt 100 are new: nobody had them in a cache.
    assert (ours.saved_share, ours.reread, ours.own) == (200 / 900, 200, 50)


def test_money_saved_is_of_requests_that_fit_and_names_its_currency() -> None:
    requests = request(400, 400), request(800, 450, own=10), request(2_000, 500, 300, own=40)
    replayed = balanced(*requests, costs=PRICES)
    ours = replayed.summaries[1]
    # Direct reads 400 tokens from the cache and 400 anew, 1,200 in all. Ours reads 450 anew, 50 of which the cache had.
    assert ours.paid_cost == pytest.approx((10 * 2 + 50) / 1e6)
    assert ours.saved_cost == pytest.approx((1_200 - 900 + 50) / 1e6)
    assert ours.net_cost == pytest.approx(ours.saved_cost - ours.paid_cost)
    assert ours.rescue_cost == pytest.approx(40 * 2 / 1e6)
    assert ours.net_share is not None
    assert ours.net_share.share == pytest.approx(280 / 2_000)
    assert verdict(replayed) == (
        "With mask, 1 of 3 requests fit only because they were condensed, 0 are refused; on those that would have"
        " fitted anyway 14 % of the cost is saved (USD 0.0003)."
    )


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ([request(400, 400)], "All 1 requests fit as they are; with mask, the cost stays the same."),
        ([request(400, 400, own=40)], "with mask, 10 % of the cost is added."),
        ([request(2_000, 500)], "With mask, 1 of 1 requests fit only because they were condensed, 0 are refused; none"),
        ([request(2_000, 1_500)], "With mask, 0 of 1 requests fit only because they were condensed, 1 are refused"),
    ],
)
def test_the_verdict_says_what_there_is_to_say(ours: list[ReplayedRequest], said: str) -> None:
    assert said in verdict(balanced(*ours))


def test_the_verdict_is_of_the_best_strategy() -> None:
    replayed = balanced(request(2_000, 500), names=("mask", "recent"))
    direct, mask, recent = replayed.summaries
    better = replayed._replace(summaries=[direct, replace(mask, unanswered=1), recent])
    assert verdict(better).startswith("With recent, the cheapest of 2 ways, 1 of 1 requests")
    assert verdict(replayed._replace(summaries=[direct])) == (
        "Without condensing, 1 of 1 requests are refused as too long."
    )


def test_texts_are_aligned_to_the_left_and_figures_to_the_right() -> None:
    assert grid(["name", "note", "n"], [["a", "first", "1"], ["long", "b", "1,000"]], texts=2) == [
        "name  note       n",
        "------------------",
        "a     first      1",
        "long  b      1,000",
    ]


def test_a_markdown_table_aligns_all_columns_but_those_of_text() -> None:
    assert markdown("what | figure | target", [["a", "1", "met"]], texts=(0, -1)).splitlines() == [
        "| what | figure | target |",
        "| --- | ---: | --- |",
        "| a | 1 | met |",
    ]


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
        "half-window": [ReplayedConversation([direct, ours, ours], {"said": (1, 2)}, HOSTILE)],
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
    assert tags(page(replayed()._replace(played={}))).open == []


def test_every_plot_has_a_table_and_shows_something() -> None:
    text = page(replayed())
    figures = re.findall("<figure>.*?</figure>", text, re.DOTALL)
    assert len(figures) > 5
    assert all("<table" in each and "<svg" in each for each in figures)
    assert '<tr><th scope="row">2</th><td>2,000</td><td>900 ○</td></tr>' in text
    assert "<h2>Evidence kept</h2>" not in text
    assert "<h2>Rescued</h2>" not in text
    assert f'<p class="verdict"><strong>{verdict(replayed())}</strong></p>' in text
    for part in ("<h2>User's words kept</h2><figure", "<td>request 2</td>", "<td>never</td>"):
        assert part in text


def test_money_of_a_conversation_ends_where_direct_is_refused() -> None:
    text = page(balanced(request(400, 400), request(2_000, 500, 300), costs=PRICES))
    spent = text.split("Table: Money spent so far")[1]
    assert '<tr><th scope="row">2</th><td>-</td>' in spent.split("</table>")[0]
    assert "direct is refused at 2" in text


def test_a_refused_request_leaves_a_gap_in_its_line() -> None:
    plot = line_plot("Tokens", [Line("off", [1.0, None, 3.0, 4.0])], {}, "", unit="tokens")
    (path,) = re.findall(r' d="(M[^"]*L[^"]*)"', plot)
    assert path.count("M") == 2


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 0.5], [0.0, 0.0]])
def test_bars_of_any_values_stay_on_the_drawing(values: list[float]) -> None:
    bars = [Bar(str(value), value, value, value, "") for value in values]
    for x, width in re.findall(r'<rect [^>]*x="([^"]*)" y="\d+" width="([^"]*)"', bar_plot("Saved", "", bars)):
        assert 0 <= float(x) <= float(x) + float(width) <= 760


A, B, C = ForwardedMessage("a", 10), ForwardedMessage("b", 20), ForwardedMessage("c", 30)


def forwarded_request(
    messages: int, shared: int = 0, *, original: int = 100, usable: int = 1_000, own: int = 0, ms: float = 1.0
) -> ReplayedRequest:
    return ReplayedRequest(original, messages, shared, 5, usable, ms, own)


def cached_share(*requests: ReplayedRequest) -> float | None:
    return summarize("mask", [ReplayedConversation(requests)]).cached_share


def refused_request(original: int = 100) -> ReplayedRequest:
    return ReplayedRequest(original, None, 0, 5, 1_000, 2.0)


def test_saved_is_negative_if_more_was_sent() -> None:
    for forwarded, saved in [(245, 0.75), (995, 0.0), (1_195, -0.2)]:
        played = ReplayedConversation([forwarded_request(forwarded, original=1_000, usable=1_200)])
        assert summarize("mask", [played]).saved_share == pytest.approx(saved)


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [([], [A, B], 0), ([A], [A, B], 10), ([A, B], [A, B, C], 30), ([A, B], [A, C], 10), ([A, B], [B, A], 0)],
)
def test_the_common_prefix_ends_at_the_first_difference(
    before: list[ForwardedMessage], after: list[ForwardedMessage], tokens: int
) -> None:
    assert common_prefix(before, after) == tokens


def test_the_cached_share_is_of_all_that_was_forwarded() -> None:
    assert cached_share(forwarded_request(10), forwarded_request(30, 10), forwarded_request(40)) == 10 / 80
    assert cached_share(forwarded_request(10), refused_request(), forwarded_request(30, 10)) == 10 / 40
    assert cached_share(refused_request()) is None


def test_refused_requests_are_no_saving_and_overflow() -> None:
    assert not forwarded_request(30, usable=35).overflows
    assert forwarded_request(30, usable=34).overflows
    assert refused_request().overflows
    summary = summarize("mask", [ReplayedConversation([forwarded_request(10), refused_request(original=10_000)])])
    assert summary.saved_share == pytest.approx(1 - 15 / 100)
    assert (summary.overflows, summary.refused) == (1, 1)


@pytest.mark.parametrize(
    ("evidence", "reaches"),
    [(["the cat sat"], True), (["the cat sat", "the mat"], True), (["the cat", "a dog"], False), (["The cat"], False)],
)
def test_a_question_reaches_where_all_its_evidence_stands_word_for_word(evidence: list[str], reaches: bool) -> None:
    assert Question("?", evidence, [0]).reaches("the cat sat\non the mat") is reaches


def test_a_summary_adds_all_conversations_up() -> None:
    long = ReplayedConversation(
        [forwarded_request(10, ms=1.0), forwarded_request(30, own=7, ms=9.0)], {"evidence": (1, 3)}
    )
    short = ReplayedConversation([forwarded_request(30, usable=30, ms=2.0)], {"evidence": (1, 1)})
    summary = summarize("mask", [long, short])
    assert (summary.requests, summary.forwarded, summary.own) == (3, 15 + 35 + 35, 7)
    assert summary.saved_share == pytest.approx(1 - 50 / 200)
    assert (summary.overflows, summary.refused, summary.largest) == (1, 0, 35)
    assert (summary.evidence_share, summary.questions) == (0.5, 4)
    assert (summary.median_ms, summary.max_ms) == (2.0, 9.0)


def test_a_way_is_cheaper_once_it_stays_so() -> None:
    assert cheaper_from([1, 5, 1, 1, 1], [2, 2, 3, 3, 3]) == 4
    assert cheaper_from([1, 1], [2, 2]) == 1
    assert cheaper_from([1, 9], [2, 2]) is None


def test_shares_and_intervals_are_over_conversations_and_none_of_nothing() -> None:
    request = ReplayedRequest(100, 80, 0, 0, 200, 1.0, own_tokens=10, votes=3, yes_votes=1)
    summary = summarize("a", [ReplayedConversation([request], {"said": (each, 4)}) for each in (1, 3)], direct=())
    assert (summary.said_share, summary.votes, summary.saved_share) == (0.5, 6, 0.2)
    assert summary.intervals["said"] == (0.5, 0.25, 0.75)
    assert summary.intervals["yes"] == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert summary.intervals["evidence"] is None
    summary = summarize("off", [])
    assert (summary.saved_share, summary.cached_share, summary.evidence_share) == (None, None, None)
