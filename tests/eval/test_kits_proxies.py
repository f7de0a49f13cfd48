import sys
from pathlib import Path

from eval.kits_proxies import Model, running

CONDENSER = Path(sys.executable).with_name("condenser")
TALK = [
    {"role": role, "content": f"{place}. We walked along the river."}
    for place in range(40)
    for role in ("user", "assistant")
]


def test_the_view_is_what_reaches_the_model() -> None:
    messages = [*TALK, {"role": "user", "content": "What did we say?"}]

    with running("condenser", "obliging", CONDENSER, CONDENSER.parent) as proxy:
        whole = proxy.view_of("one", messages)
        condensed = proxy.view_of("two", messages, 1_024)

    assert [message["content"] for message in whole] == [message["content"] for message in messages]
    assert len(condensed) < len(messages)
    assert condensed[-1]["content"] == "What did we say?"


def asked(style: str, text: str) -> str:
    return Model(style).reply({"messages": [{"role": "user", "content": f"Transcript to compress\n{text}"}]})


def test_an_obliging_model_copies_what_tells_something() -> None:
    text = "Never push to main.\nwell then\nThe port is 8484."

    assert asked("obliging", text).splitlines() == ["Never push to main.", "The port is 8484."]
    assert "8484" not in asked("careless", text)


def test_a_request_for_a_summary_is_no_view() -> None:
    model = Model("careless")

    model.reply({"messages": [{"role": "user", "content": "Hello."}]})
    model.reply({"messages": [{"role": "user", "content": "Transcript to compress\nHello."}]})

    assert model.view == [{"role": "user", "content": "Hello."}]
    assert model.own_calls == 1
