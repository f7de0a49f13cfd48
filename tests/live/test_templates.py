"""Chat templates that want a certain form, and a model that is offered the search of its memory."""

import pytest

from tests.live.llama import history, llama, talk
from tests.live.templates import ALTERNATES, SYSTEM_FIRST
from tests.support.proxy import running_proxy
from tests.support.stage import controls

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


@pytest.mark.parametrize("template", [ALTERNATES, SYSTEM_FIRST], ids=["roles alternate", "system first"])
def test_a_condensed_history_suits_the_template(template: str) -> None:
    with (
        llama(n_ctx=1_024, n_parallel=1, chat_template=template) as url,
        running_proxy(url, as_shipped=True) as proxy,
    ):
        forced = controls(session="s", window=1_024, force="true")
        first = talk(proxy.url, history(10), forced)
        assert (first.status, first.action) == (200, "condensed"), first
        later = talk(proxy.url, history(11), controls(session="s", window=1_024))
        assert (later.status, later.action) == (200, "replayed"), later


def test_a_search_of_memory_is_answered_by_the_proxy(server_with_tools: str) -> None:
    with running_proxy(server_with_tools, as_shipped=True, memory={"default": "tool"}) as proxy:
        forced = controls(session="s", window=1_024, force="true")
        talk(proxy.url, history(12), forced)
        question = {"role": "user", "content": "Search your memory for the number of the ticket of Bruno."}
        answer = talk(proxy.url, [*history(12), {"role": "assistant", "content": "Yes."}, question], max_tokens=48)
    assert answer.status == 200, answer
    assert "search_memory" not in str(answer.json()["choices"][0]["message"].get("tool_calls")), answer.body
