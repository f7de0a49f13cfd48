"""A long session on a flagship: what its prompts cost."""

import asyncio

from eval import flagship


def test_a_flagship_costs_less_at_the_cheapest_target_than_to_a_share() -> None:
    session = flagship.session(head=5_000, each=4_000, largest=400_000)
    found = {way: asyncio.run(flagship.played(way, session)) for way in flagship.WAYS if "step" not in way}
    sent, share, usual, auto = (cost for _, cost in found.values())
    assert sent > share > usual > auto
    assert flagship.rows(found).count("\n") == 1 + len(found)
