"""The measurement of how much of a prompt repeats: its shapes, what it counts, and what the proxy makes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.repeats import SHAPES, Shape, conversation, row, windows_of
from proxy.replaying.play import request_ends


def played(name: str, window: int, strategy: str = "mask+half-window") -> dict[str, Any]:
    (shape,) = (shape for shape in SHAPES if shape.name == name)
    return asyncio.run(row(shape, window, strategy))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_is_the_same_every_time_and_makes_as_many_requests_as_its_client(shape: Shape) -> None:
    one = conversation(shape)
    assert one == conversation(shape)
    assert len(list(request_ends(one))) == shape.requests
    assert shape.window in windows_of(shape)


def test_a_view_that_only_grows_repeats_as_much_as_the_client_does() -> None:
    found = played("pi", 128_000)
    assert (found["condensed"], found["own calls"], found["saved, %"]) == (0, 0, 0)
    assert found["repeats, %"] == pytest.approx(found["client, %"]) == pytest.approx(found["at best, %"])


@pytest.mark.parametrize(("name", "window", "repeats", "condensed", "own_calls"), [
    ("langchain", 16_000, 60, 7, 1),
    ("opencode", 24_000, 68, 4, 4),
    ("Continue", 16_000, 60, 6, 2),
])  # fmt: skip
def test_a_condensation_in_a_small_window_buys_room(
    name: str, window: int, repeats: int, condensed: int, own_calls: int
) -> None:
    found = played(name, window)
    assert repeats <= found["repeats, %"] <= found["at best, %"]
    assert found["condensed"] <= condensed
    assert found["own calls"] <= own_calls


def test_a_row_marks_the_window_in_which_the_client_was_seen() -> None:
    assert (played("pi", 12_000)["window"], played("pi", 128_000)["window"]) == ("12,000 *", "128,000")
