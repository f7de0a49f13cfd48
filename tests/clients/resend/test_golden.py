"""The golden files are what the installed clients send today, over real sockets."""

from __future__ import annotations

from functools import cache

import pytest

from tests.clients.resend import golden
from tests.clients.resend.cases import CASES, WAY, answer, continues, resent
from tests.clients.resend.clients import CLIENTS, NODE_FOLDER, NODE_READY, Raised
from tests.support.recording import Journal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litellm's own use of pydantic

Recording = dict[str, dict[str, golden.Outcome]]  # case -> way -> outcome


@cache
def recorded(client: str) -> Recording:
    """Hold all conversations with the installed client, at the first question about one of them."""
    with ScriptedUpstream() as upstream:
        upstream.answer(answer)
        raised = CLIENTS[client].hold(upstream.base_url)
        return _outcomes(upstream.journal, raised)


def _outcomes(journal: Journal, raised: Raised) -> Recording:
    """The last request of each conversation counts; what an agent sent within its run must be the same."""
    found: Recording = {}
    for exchange in journal.to():
        body, way = exchange.json(), exchange.header(WAY)
        if continues(body) and way is not None:
            ways = found.setdefault(body["model"], {})
            outcome = {"messages": resent(body)}
            assert ways.setdefault(way, outcome) == outcome, f"{way} sends {body['model']} in two forms"
    for (way, case), name in raised.items():
        found.setdefault(case, {})[way] = {"raised": name}
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_resends_what_its_golden_file_says(client: str, case: str) -> None:
    if CLIENTS[client].on_node and not NODE_READY:
        pytest.skip(f"{client} is NOT TESTED: needs node and `npm ci` in {NODE_FOLDER}")
    sent = recorded(client)[case]
    if golden.UPDATING:
        golden.write(client, case, CLIENTS[client].versions(), sent)
    assert sent == golden.read(client, case)


def test_there_is_one_golden_file_for_each_client_and_case() -> None:
    wanted = {golden.path(client, case) for client in CLIENTS for case in CASES}
    assert set(golden.FOLDER.iterdir()) == wanted
