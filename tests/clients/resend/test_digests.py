"""One reply has one digest, whichever client sends it back; read from the golden files alone."""

from __future__ import annotations

from collections import defaultdict

import pytest

from strategies.core.digest import message_digest
from tests.clients.resend.cases import CASES, RESULT
from tests.clients.resend.changes import CHANGES
from tests.clients.resend.golden import Resend, resends
from tests.support.replies import Json


def is_changed(resend: Resend) -> bool:
    return any(change.covers(resend.client, resend.case, resend.way) for change in CHANGES)


def digests(messages: list[Json]) -> list[bytes]:
    return [message_digest(message) for message in messages]


def originals(case: str) -> list[Json]:
    """The reply as the upstream wrote it, and one result for each of its calls."""
    reply = CASES[case].message
    calls = reply.get("tool_calls", [])
    return [reply, *({"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls)]


@pytest.mark.parametrize("case", CASES)
def test_a_reply_and_its_results_come_back_with_the_digests_they_had(case: str) -> None:
    kept = [resend for resend in resends() if resend.case == case and not is_changed(resend)]
    wrong = [str(resend) for resend in kept if digests(resend.messages) != digests(originals(case))]
    assert (bool(kept), wrong) == (True, [])


def test_a_reply_that_a_client_changes_does_not_pass_for_the_original() -> None:
    changed = [resend for resend in resends() if is_changed(resend)]
    alike = [r for r in changed if digests(r.messages)[:1] == digests(originals(r.case))[:1]]
    assert (bool(changed), alike) == (True, [])


def test_every_documented_change_is_in_the_golden_files() -> None:
    found = list(resends())
    assert [c for c in CHANGES if not any(c.covers(r.client, r.case, r.way) for r in found)] == []


def test_no_two_cases_share_the_digest_of_an_assistant_message() -> None:
    sharing = defaultdict(set)
    for case in CASES:
        sharing[message_digest(CASES[case].message)].add(case)
    for resend in resends():
        for digest in digests(resend.messages[:1]):
            sharing[digest].add(resend.case)
    assert [cases for cases in sharing.values() if len(cases) > 1] == []


def test_refusals_of_different_words_have_one_digest() -> None:
    """The price of the closed list: LangChain and LiteLLM send a refusal back without its words."""
    refusal = CASES["refusal"].message
    assert message_digest(refusal) == message_digest({**refusal, "refusal": "No."})
    assert message_digest(refusal) == message_digest({"role": "assistant", "content": ""})
