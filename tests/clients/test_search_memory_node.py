"""The official openai package for Node before a model that searches its memory, run by node/search_memory.mjs."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.clients.searching import HEADERS, HISTORY, POSITIONS, QUESTION, TOOLS, TURNS, check, script
from tests.clients.test_openai_node import HERE, INSTALLED, NODE
from tests.support.proxy import Proxy
from tests.support.signals import BOUND
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.skipif(
    NODE is None or not INSTALLED,
    reason=f"the Node client is NOT TESTED: needs node and `npm ci` in {HERE} (make setup)",
)


def converse(proxy: Proxy, streamed: bool) -> list[str | None]:
    """What the client prints: the text of each reply."""
    assert NODE is not None
    conversation: dict[str, Any] = {"headers": HEADERS, "history": [*HISTORY, QUESTION], "tools": TOOLS, "turns": TURNS}
    command = [NODE, "search_memory.mjs", proxy.base_url, json.dumps({**conversation, "streamed": streamed})]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert done.returncode == 0, done.stderr
    texts: list[str | None] = json.loads(done.stdout)
    return texts


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("position", POSITIONS)
def test_it_sees_nothing_of_a_search(proxy: Proxy, upstream: ScriptedUpstream, position: str, streamed: bool) -> None:
    script(proxy, upstream, position, streamed=streamed)
    check(proxy, upstream, converse(proxy, streamed), position)
