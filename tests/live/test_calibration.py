"""What the proxy expects the server to count, in English, Chinese and code."""

import pytest

from tests.live.llama import Message, talk
from tests.support.proxy import running_proxy
from tests.support.stage import controls

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

WINDOW, RESERVE, TURNS = 2_048, 8, 7  # the window is said by the client; all prompts fit into the server's own
SAYS = {
    "English": (
        "Bed {0} gets {1} rows of beans in spring, and the fence behind it needs new boards before the snow comes.",
        "I have written down bed {0}, and I will remind you of the fence in week {1}.",
    ),
    "Chinese": (
        "第{0}号菜地春天种{1}行豆子，后面的篱笆要在下雪之前换上新的木板，请提前准备工具。",
        "已经记下第{0}号菜地，第{1}周我会提醒您修理篱笆。",
    ),
    "code": (
        'def plant_{0}(bed: dict[str, int]) -> int:\n    """Rows."""\n    return bed.get("rows", {1}) * 2 + len(bed)\n',
        "for row in range({1}):\n    total_{0} += plant_{0}({{'rows': row}})  # each row once\n",
    ),
}


@pytest.mark.parametrize("kind", SAYS)
def test_a_prompt_is_expected_within_five_percent_from_the_third_turn(server: str, kind: str) -> None:
    asks, says = SAYS[kind]
    messages: list[Message] = [{"role": "system", "content": "Plan the garden."}]
    errors: list[float] = []
    with running_proxy(server, as_shipped=True) as proxy:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": asks.format(turn, turn * 7 % 11)})
            answer = talk(proxy.url, messages, controls(session=kind, window=WINDOW), max_tokens=RESERVE)
            assert answer.status == 200, answer.body
            counted = answer.json()["usage"]["prompt_tokens"]
            errors.append((WINDOW - RESERVE - answer.headroom) / counted - 1)
            messages.append({"role": "assistant", "content": says.format(turn, turn * 7 % 11)})
    assert max(map(abs, errors[2:])) <= 0.05, [round(each, 3) for each in errors]
