"""One reply has one digest, whichever client sends it back; every installed client resends every case."""

from collections import defaultdict
from typing import NamedTuple

import pytest

from strategies.core.messages import message_digest
from strategies.dialects.chat import CHAT
from tests.clients.resend.cases import CASES, RESULT
from tests.clients.resend.changes import CHANGES, Change
from tests.clients.resend.clients import CLIENTS
from tests.clients.resend.recorded import recorded
from tests.support.replies import Json

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litellm's own use of pydantic


class Resend(NamedTuple):
    """What one way of a client resent for one case; `messages` is empty where it resent nothing."""

    client: str
    case: str
    way: str
    messages: list[Json]

    @property
    def is_changed(self) -> bool:
        return any(change.covers(self.client, self.case, self.way) for change in CHANGES)


def resends(client: str) -> list[Resend]:
    return [
        Resend(client, case, way, outcome.get("messages", []))
        for case, ways in recorded(client).items()
        for way, outcome in ways.items()
    ]


def digests(messages: list[Json]) -> list[bytes]:
    return [message_digest(message, CHAT) for message in messages]


def originals(case: str) -> list[Json]:
    """The reply as the upstream wrote it, and one result for each of its calls."""
    reply = CASES[case].message
    calls = reply.get("tool_calls", [])
    return [reply, *({"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls)]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_reply_and_its_results_come_back_with_the_digests_they_had(client: str) -> None:
    kept = [resend for resend in resends(client) if not resend.is_changed]
    assert {resend.case for resend in resends(client)} == set(CASES)
    assert [each for each in kept if digests(each.messages) != digests(originals(each.case))] == []


@pytest.mark.parametrize("client", CLIENTS)
def test_a_reply_that_a_client_changes_does_not_pass_for_the_original(client: str) -> None:
    changed = [resend for resend in resends(client) if resend.is_changed]
    assert [each for each in changed if digests(each.messages)[:1] == digests(originals(each.case))[:1]] == []


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.client}-{change.case}")
def test_every_documented_change_is_made(change: Change) -> None:
    assert any(change.covers(each.client, each.case, each.way) for each in resends(change.client))


@pytest.mark.parametrize("client", CLIENTS)
def test_no_two_cases_share_the_digest_of_an_assistant_message(client: str) -> None:
    sharing = defaultdict(set)
    for case in CASES:
        sharing[message_digest(CASES[case].message, CHAT)].add(case)
    for resend in resends(client):
        for digest in digests(resend.messages[:1]):
            sharing[digest].add(resend.case)
    assert [cases for cases in sharing.values() if len(cases) > 1] == []


def test_refusals_of_different_words_have_one_digest() -> None:
    """The price of the closed list: LangChain and LiteLLM send a refusal back without its words."""
    refusal = CASES["refusal"].message
    assert message_digest(refusal, CHAT) == message_digest({**refusal, "refusal": "No."}, CHAT)
    assert message_digest(refusal, CHAT) == message_digest({"role": "assistant", "content": ""}, CHAT)
