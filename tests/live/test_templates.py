"""Chat templates that want a certain form, and a model that is offered the search of its memory."""

import pytest

from tests.live.llama import history, llama, talk
from tests.support.proxy import running_proxy
from tests.support.stage import controls

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SHOWN = "{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') + '<|im_end|>\\n' }}"
REPLY = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
ALTERNATES = (
    "{% set begin = 1 if messages[0]['role'] == 'system' else 0 %}"
    "{% for m in messages %}"
    "{% if m['role'] != 'system' and (m['role'] == 'user') != ((loop.index0 - begin) % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    + SHOWN
    + "{% endfor %}"
    + REPLY
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}" + SHOWN + "{% endfor %}" + REPLY
)
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\\nCall a function when it helps. Functions:\\n' }}"
    "{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}"
    '{{ \'Answer with <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n\' }}{% endif %}'
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + m['content'] + '\\n</tool_response><|im_end|>\\n' }}"
    "{% elif m['tool_calls'] %}{{ '<|im_start|>assistant\\n' }}{% for call in m['tool_calls'] %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% else %}" + SHOWN + "{% endif %}{% endfor %}" + REPLY
)


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


def test_a_search_of_memory_is_answered_by_the_proxy() -> None:
    with (
        llama(n_ctx=1_024, n_parallel=1, chat_template=HERMES) as url,
        running_proxy(url, as_shipped=True, memory={"default": "tool"}) as proxy,
    ):
        forced = controls(session="s", window=1_024, force="true")
        talk(proxy.url, history(12), forced)
        question = {"role": "user", "content": "Search your memory for the number of the ticket of Bruno."}
        answer = talk(proxy.url, [*history(12), {"role": "assistant", "content": "Yes."}, question], max_tokens=48)
    assert answer.status == 200, answer
    assert "search_memory" not in str(answer.json()["choices"][0]["message"].get("tool_calls")), answer.body
