"""The table's rows become windows that are true, or are left out."""

from __future__ import annotations

from typing import Any

import pytest

from deploy import update_models
from deploy.update_models import Limits


def row(provider: str, given: object, output: object = None, mode: str = "chat") -> dict[str, Any]:
    limits = {"max_input_tokens": given, "max_output_tokens": output}
    return {"litellm_provider": provider, "mode": mode, **limits}


@pytest.mark.parametrize(
    ("given", "output", "limits"),
    [
        (272_000, 128_000, Limits(400_000, 272_000, 128_000)),
        (922_000, 128_000, Limits(1_050_000, 922_000, 128_000)),
        (400_000, 128_000, Limits(400_000, 272_000, 128_000)),
        (128_000, 16_384, Limits(128_000, None, 16_384)),
        (131_072, 131_072, Limits(131_072)),
        (131_072, None, Limits(131_072)),
    ],
)
def test_a_row_is_brought_to_window_input_and_output(given: int, output: int | None, limits: Limits) -> None:
    assert update_models.limits_of(row("openai", given, output)) == limits


def test_a_vendor_speaks_for_its_own_models_only() -> None:
    table = {
        "gpt-4o": row("openai", 128_000),
        "azure/eu/gpt-4o": row("azure", 64_000),
        "mistral/glm-5": row("mistral", 1_000_000),
        "gpt-4o-mini-tts": row("openai", 2_000),
        "text-embedding-3": row("openai", 8_191, mode="embedding"),
        "gpt-5.5-cyber": row("openai", None),
    }
    assert update_models.merge([table]) == {"gpt-4o": Limits(128_000)}


def test_an_open_model_needs_two_hosts_that_agree() -> None:
    table = {
        "groq/a/open-7b": row("groq", 32_768, 1_000),
        "novita/b/Open-7B": row("novita", 32_768),
        "nebius/c/open-7b": row("nebius", 8_192),
        "groq/a/lonely-7b": row("groq", 8_192),
        "novita/a/disputed-7b": row("novita", 8_192),
        "groq/a/disputed-7b": row("groq", 4_096),
    }
    assert update_models.merge([table]) == {"open-7b": Limits(32_768)}


def test_a_newer_table_goes_before_an_older_one() -> None:
    newer = {"gpt-4o": row("openai", 128_000)}
    older = {"gpt-4o": row("openai", 64_000), "gpt-4-0314": row("openai", 8_192)}
    assert update_models.merge([newer, older]) == {"gpt-4o": Limits(128_000), "gpt-4-0314": Limits(8_192)}


def test_a_dated_name_is_dropped_only_when_it_says_nothing_new() -> None:
    models = {"o1": Limits(200), "o1-2024-12-17": Limits(200), "o1-2024-01-01": Limits(100)}
    assert update_models.prune(models) == {"o1": Limits(200), "o1-2024-01-01": Limits(100)}


def test_entries_are_written_sorted_one_a_line() -> None:
    text = update_models.render({"b": Limits(2), "a": Limits(3, 2, 1)}, "litellm==1")
    assert text.endswith('[models]\n"a" = { window = 3, max_input = 2, max_output = 1 }\n"b" = { window = 2 }\n')
