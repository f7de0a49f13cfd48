"""The anchors of hermes-agent's kit: which facts they are, and what is said where the kit is missing."""

import asyncio
import json
from pathlib import Path

from eval import hermes
from strategies import DEFAULT
from tests.support.transcripts import assistant, call, tool, user


def kit_in(folder: Path) -> Path:
    """A kit of one made-up session in the form of the published one."""
    messages = [{"role": "system", "content": "Word for word: Saturday."}, user("Copy the data at 17:00 UTC.")]
    for i in range(20):
        messages += [assistant(None, call(f"c{i}", "run", {"step": i})), tool(f"c{i}", f"out{i} " + "word " * 100)]
    messages += [assistant("The job nightly-copy is made.")]
    facts = {"recall": ["17:00 UTC", "Saturday", "17"], "artifact": ["nightly-copy", "eleven jobs"]}
    probes = [{"id": kind, "type": kind, "expected_facts": each} for kind, each in facts.items()]
    for name, value in (("fixtures/a.json", {"messages": messages}), ("probes/a.probes.json", {"probes": probes})):
        (folder / name).parent.mkdir()
        (folder / name).write_text(json.dumps(value), "utf-8")
    return folder


def test_an_anchor_is_a_fact_that_stands_in_the_session(tmp_path: Path) -> None:
    (found,) = hermes.sessions(kit_in(tmp_path))
    expected = {"recall": ["17:00 UTC"], "artifact": ["nightly-copy"], "decision": [], "continuation": []}
    assert found.anchors == expected


def test_anchors_are_looked_for_in_the_view_at_the_end(tmp_path: Path) -> None:
    (found,) = hermes.sessions(kit_in(tmp_path))
    views = asyncio.run(hermes.views(found))
    assert [view.arm for view in views] == [DEFAULT, "recent"]
    assert views[0].kept == {"recall": 1, "artifact": 1, "decision": 0, "continuation": 0}
    assert all(view.tokens < 1_500 for view in views)


def test_a_kit_that_is_missing_is_said_to_be_skipped(tmp_path: Path) -> None:
    assert hermes.table(tmp_path).startswith("Skipped: ")
