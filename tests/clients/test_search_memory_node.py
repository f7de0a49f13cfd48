"""The official openai package for Node before a model that searches its memory, run by node/search_memory.mjs."""

from collections.abc import Iterator

import pytest

from tests.clients.searching import HEADERS, HISTORY, POSITIONS, QUESTION, TOOLS, TURNS, check, script
from tests.clients.test_openai_node import HERE, INSTALLED, NODE, Driver, driving
from tests.support.proxy import Proxy
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.skipif(
    NODE is None or not INSTALLED,
    reason=f"the Node client is NOT TESTED: needs node and `npm ci` in {HERE} (make setup)",
)


@pytest.fixture(scope="module")
def node() -> Iterator[Driver]:
    with driving("search_memory.mjs") as driver:
        yield driver


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("position", POSITIONS)
def test_it_sees_nothing_of_a_search(
    node: Driver, proxy: Proxy, upstream: ScriptedUpstream, position: str, streamed: bool
) -> None:
    script(proxy, upstream, position, streamed=streamed)
    conversation = {"headers": HEADERS, "history": [*HISTORY, QUESTION], "tools": TOOLS, "turns": TURNS}
    check(proxy, upstream, node.ask({"baseURL": proxy.base_url, **conversation, "streamed": streamed}), position)
