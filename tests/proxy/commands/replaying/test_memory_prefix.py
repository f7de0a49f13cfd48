"""With memory on, each forwarded list begins with the one before, up to the next condensation, in all protocols."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.commands.replaying.play import Player, Playing, open_replay_proxy, request_ends
from proxy.commands.replaying.recorded import Conversation
from proxy.protocols import endpoint_named
from proxy.protocols.endpoint import Endpoint
from proxy.settings import Settings
from strategies import TABLE

WINDOW = 3_000
WORDS = ("fig", "pear", "plum", "kale", "mint", "sage", "rose", "iris", "lily", "moss", "fern", "reed")
STRATEGIES = [name for name in TABLE if name not in ("off", "native")]
turns = st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["asks", "says", "twice"])), min_size=12, max_size=26)


def conversation(said: Sequence[tuple[int, str]], endpoint: Endpoint) -> Conversation:
    """A talk about beds: each turn says something of one, or asks about an earlier one, or about two."""
    dialect, messages = endpoint.dialect, []
    for number, (bed, how) in enumerate(said):
        plant = WORDS[bed]
        question = f"Where did the {plant} of bed {bed} grow?"
        if how == "twice":
            question += f" And what did I say about the {WORDS[bed - 1]}?"
        told = f"Note {number}: the {plant} of bed {bed} grows in row {number}. " + f"{plant} {number} " * 60
        messages += [
            dialect.user(told if how == "says" else question),
            dialect.assistant(f"Ok, {plant} {number}. " * 20),
        ]
    return Conversation("talk", messages, endpoint=endpoint)


async def shrunk_prefixes(talk: Conversation, strategy: str) -> tuple[list[int], int]:
    """The requests whose list does not begin with the one before it, uncondensed, and the most blocks in one list."""
    own = Settings.model_validate({"store": {"url": "memory://"}, "economy": "off", "background": {"mode": "off"}})
    async with open_replay_proxy(own) as proxy:
        playing = Playing(Player(proxy, "gpt-4o", WINDOW), talk, strategy, "s", "inject")
        broken, most = [], 0
        for end in request_ends(talk):
            before = playing.view
            decided = await playing.send(end)
            is_grown = [one.raw for one in playing.view[: len(before)]] == [one.raw for one in before]
            broken += [] if is_grown or decided.condensed else [end]
            most = max(most, sum("Relevant Memories" in json.dumps(one.raw) for one in playing.view))
        return broken, most


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=settings().max_examples // 8)
@given(protocol=st.sampled_from(["chat", "messages", "responses"]), said=turns)
def test_a_list_begins_with_the_one_before(protocol: str, strategy: str, said: list[tuple[int, str]]) -> None:
    talk = conversation(said, endpoint_named(protocol))
    broken, _ = asyncio.run(shrunk_prefixes(talk, strategy))
    assert broken == []


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_several_blocks_stand_at_once(protocol: str) -> None:
    # What was said of bed 0 is the task, which the view shows.
    said = [*((bed, "says") for bed in range(12)), *((bed, "asks") for bed in range(1, 4))]
    broken, most = asyncio.run(shrunk_prefixes(conversation(said, endpoint_named(protocol)), "mask+extract"))
    assert broken == []
    assert most > 1
