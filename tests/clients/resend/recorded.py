"""What the installed clients resend, recorded once in a process over real sockets."""

from functools import cache

import pytest

from tests.clients.resend.cases import WAY, answer, continues, resent
from tests.clients.resend.clients import CLIENTS, NODE_FOLDER, NODE_READY, ON_NODE, Raised
from tests.support.recording import Journal
from tests.support.replies import Json
from tests.support.upstream import ScriptedUpstream

Outcome = Json  # {"messages": [...]} as resent, or {"raised": name} where the client stopped over the reply
Recording = dict[str, dict[str, Outcome]]  # case -> way -> outcome


def recorded(client: str) -> Recording:
    """All conversations of an installed client; skips the test where the client cannot run."""
    if client in ON_NODE and not NODE_READY:
        pytest.skip(f"{client} is NOT TESTED: needs node and `npm ci` in {NODE_FOLDER}")
    return _hold(client)


@cache
def _hold(client: str) -> Recording:
    with ScriptedUpstream() as upstream:
        upstream.answer(answer)
        raised = CLIENTS[client](upstream.base_url)
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
