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
    assert update_models.limits_of("gpt-5", row("openai", given, output)) == limits


def test_a_vendor_speaks_for_its_own_models_only() -> None:
    table = {
        "gpt-4o": row("openai", 128_000),
        "azure/eu/gpt-4o": row("azure", 64_000),
        "gpt-4o-mini-tts": row("openai", 2_000),
        "text-embedding-3": row("openai", 8_191, mode="embedding"),
        "gpt-5.5-cyber": row("openai", None),
    }
    assert update_models.merge([table]) == {"gpt-4o": Limits(128_000)}


PUBLISHED_WEIGHTS = (
    *("gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b-it", "gemma3", "c4ai-aya-expanse-32b", "command-r", "command-r-plus"),
    *("qwen2.5-72b-instruct", "qwen3-32b", "qwen3-30b-a3b", "qwen3.5-397b-a17b", "qwen3-next-80b-a3b-instruct"),
    *("qwen3-coder-480b-a35b-instruct", "qwq-32b", "nvidia-nemotron-nano-9b-v2", "mimo-v2.5-pro", "grok-2"),
    *("mixtral-8x7b-instruct-v0.1", "ministral-8b-2512", "mistral-small", "mistral-small-2603", "mistral-large-3"),
    *("open-mistral-nemo", "devstral-small-2507", "devstral-2512", "pixtral-12b-2409", "magistral-small-2506"),
    *("voxtral-small-2507", "deepseek-r1", "deepseek-v3.2", "deepseek-coder", "glm-4.6", "glm-4.5-air"),
    *("kimi-k2-instruct", "kimi-k2-thinking", "kimi-k2.5", "minimax-m2", "minimax-m2.5"),
)


@pytest.mark.parametrize("name", PUBLISHED_WEIGHTS)
def test_a_name_under_which_weights_are_published_is_not_its_vendors_alone(name: str) -> None:
    assert update_models.WEIGHTS.match(name)


def hosted(name: str, **windows: int) -> dict[str, dict[str, Any]]:
    return {f"{host}/{name}": row(host, window) for host, window in windows.items()}


@pytest.mark.parametrize(
    ("windows", "known"),
    [
        ({"a": 128_000, "b": 131_072, "c": 32_768}, 128_000),  # two agree, and none gives more
        ({"a": 131_072, "b": 131_072, "c": 128_000}, 131_072),
        ({"a": 60_288, "b": 131_072}, None),  # do not agree
        ({"a": 8_192, "b": 8_192, "c": 32_000}, None),  # the third may be right
        ({"bedrock": 196_000, "bedrock_converse": 196_000}, None),  # are one host
        ({"zai": 200_000, "a": 40_000}, 200_000),  # the vendor alone suffices
        ({"zai": 200_000, "a": 1_000_000}, 200_000),  # one host does not outweigh the vendor
        ({"zai": 65_536, "a": 163_840, "b": 160_000}, 160_000),  # two do: weights that the vendor serves with less
    ],
)
def test_published_weights_have_the_largest_confirmed_window(windows: dict[str, int], known: int | None) -> None:
    merged = update_models.merge([hosted("glm-4.6", **windows)])
    assert merged == ({} if known is None else {"glm-4-6": Limits(known)})


def test_hosts_do_not_outweigh_the_vendor_of_a_model_without_published_weights() -> None:
    table = hosted("qwen3-max-2026-01-23", dashscope=262_144, a=1_000_000, b=1_000_000)
    assert {limits.window for limits in update_models.merge([table]).values()} == {262_144}


def test_the_newest_row_of_a_host_counts_without_local_tags() -> None:
    newer = {"fireworks_ai/glm-4p6": row("fireworks_ai", 205), "ollama/glm-4.6:9b": row("ollama", 4)}
    older = {**hosted("glm-4.6", a=205, fireworks_ai=900), "b/glm-4.6:9b": row("b", 4)}
    assert update_models.merge([newer, older]) == {"glm-4-6": Limits(205)}


def test_a_claude_with_a_price_for_long_prompts_takes_a_million_tokens() -> None:
    long = {**row("bedrock", 200_000), update_models.LONG_PRICE: 6e-06}
    table = {
        "claude-sonnet-4-5": row("anthropic", 200_000),
        "claude-haiku-4-5": row("anthropic", 200_000),
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0": long,
        "us.anthropic.claude-3-5-sonnet-20241022-v2:0": long,
    }
    merged = update_models.merge([table])
    assert (merged["claude-sonnet-4-5"].long, merged["claude-haiku-4-5"].long) == (1_000_000, None)


@pytest.mark.parametrize(
    "name",
    [
        *("gpt-4o", "o3", "claude-sonnet-4-5", "gemini-2.5-flash", "grok-4", "grok-2-latest", "sonar-pro"),
        *("mistral-small-latest", "mistral-medium-2505", "mistral-large-2411", "magistral-small-latest"),
        *("deepseek-chat", "deepseek-reasoner", "kimi-latest", "kimi-k2-turbo-preview", "moonshot-v1-32k"),
        *("qwen-plus", "qwen3-max", "qwen3-coder-plus", "command-r-08-2024", "nova-pro-v1"),
    ],
)
def test_a_name_that_only_its_vendor_serves_is_kept(name: str) -> None:
    assert not update_models.WEIGHTS.match(name)


def test_a_newer_table_goes_before_an_older_one() -> None:
    newer = {"gpt-4o": row("openai", 128_000)}
    older = {"gpt-4o": row("openai", 64_000), "gpt-4-0314": row("openai", 8_192)}
    assert update_models.merge([newer, older]) == {"gpt-4o": Limits(128_000), "gpt-4-0314": Limits(8_192)}


def test_a_dated_name_is_dropped_only_when_it_says_nothing_new() -> None:
    models = {"o1": Limits(200), "o1-2024-12-17": Limits(200), "o1-2024-01-01": Limits(100)}
    assert update_models.prune(models) == {"o1": Limits(200), "o1-2024-01-01": Limits(100)}


def test_entries_are_written_sorted_one_a_line() -> None:
    prices = {"c": update_models.Cost(2.5, 1.25, 2.5, 10.0)}
    text = update_models.render({"b": Limits(2), "a": Limits(3, 2, 1)}, prices, "litellm==1")
    assert '[models]\n"a" = { window = 3, max_input = 2, max_output = 1 }\n"b" = { window = 2 }\n' in text
    assert text.endswith('[prices]\n"c" = [2.5, 1.25, 2.5, 10.0]\n')


def test_prices_are_the_vendors_own_for_a_million_tokens() -> None:
    cached = {**row("openai", 128_000), "input_cost_per_token": 2.5e-06, "cache_read_input_token_cost": 1.25e-06}
    plain = {**row("openai", 128_000), "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}
    table = {"gpt-4o": cached, "gpt-4": plain, "gpt-3.5-turbo": row("openai", 16_000)}
    assert update_models.priced([table]) == {
        "gpt-4o": update_models.Cost(2.5, 1.25, 2.5, 0.0),
        "gpt-4": update_models.Cost(1.0, 1.0, 1.0, 2.0),
    }
