from __future__ import annotations

import json
from dataclasses import replace

from proxy.condensing.policy import Window
from proxy.replaying.measures import ReplayedConversation, ReplayedRequest, summarize
from proxy.replaying.report import ReplayResults, document, grid, markdown, table

SUMMARY = summarize(
    "mask+half-window", [ReplayedConversation([ReplayedRequest(2_000, 1_500, 0, 0, 4_000, 1.25, own_tokens=100)])]
)
REPLAYED = ReplayResults(
    "talk.json", 1, "gpt-4o", Window(8_192, "--window"), [replace(SUMMARY, strategy="off"), SUMMARY]
)


def test_the_table_says_what_was_replayed_and_under_which_window() -> None:
    assert table(REPLAYED).splitlines()[0] == "talk.json: 1 conversation, gpt-4o, window 8,192 (--window)"


def test_the_columns_of_the_table_are_aligned() -> None:
    head, _, *rows = table(REPLAYED).splitlines()[2:6]

    assert head.split()[:3] == ["strategy", "requests", "tokens"]
    assert (
        rows[1].split()
        == [
            "mask+half-window",
            "1",
            "1,500",
            "100",
            "20.0%",
            "0",
            "0",
            "0.0%",
            "-",
            "-",
            "-",
            "0",
            "-",
            "0.002",
            "-",
            "-",
        ]
        + ["1.2"] * 2
    )
    assert len({len(line) for line in (head, *rows)}) == 1


def test_degraded_requests_are_told_of() -> None:
    degraded = replace(SUMMARY, degraded=2)

    assert "mask+half-window: 2 requests were degraded" in table(REPLAYED._replace(summaries=[degraded]))
    assert "degraded" not in table(REPLAYED)


def test_refused_requests_are_told_beside_the_overflows() -> None:
    refused = replace(SUMMARY, overflows=3, refused=1)

    assert "3 (1 refused)" in table(REPLAYED._replace(summaries=[refused]))


def test_the_document_is_json_with_all_figures() -> None:
    read = json.loads(json.dumps(document(REPLAYED)))

    assert (read["window"], read["window_source"], read["summarizer"]) == (8_192, "--window", "scripted")
    assert [each["strategy"] for each in read["strategies"]] == ["off", "mask+half-window"]
    assert read["strategies"][1]["forwarded"] == 1_500


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
