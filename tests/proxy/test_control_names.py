"""A text that names no pipeline is refused with the stage that is wrong in it."""

from __future__ import annotations

import pytest

from proxy.control_names import why_no_pipeline
from strategies import TABLE, parse

KNOWN = f"known: {', '.join(TABLE)}, joined with '+'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mask+foo", f"unknown strategy 'foo' in 'mask+foo'; {KNOWN}"),
        ("observe:mask+rollin", f"unknown strategy 'rollin' in 'observe:mask+rollin'; did you mean 'rolling'? {KNOWN}"),
        ("quux", f"unknown strategy 'quux'; {KNOWN}"),
        ("mask+", f"a strategy is missing in 'mask+'; {KNOWN}"),
        ("", f"a strategy is missing; {KNOWN}"),
        ("off+mask", "'off' cannot be joined with other strategies"),
        ("+".join(["mask"] * 60), "a pipeline has at most 256 characters, not 299"),
        ("a\n" + "b" * 200, f"unknown strategy 'a?{'b' * 62}…'; {KNOWN}"),
    ],
)
def test_the_stage_that_is_wrong_is_named(text: str, says: str) -> None:
    assert parse(text) is None
    assert why_no_pipeline(text) == says
