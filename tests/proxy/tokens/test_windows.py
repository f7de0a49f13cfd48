"""The bundled table: how its rows are made, and that it answers for exact names only."""

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from proxy.commands import models as making
from proxy.commands.models import Cost, Known, Limits, Priced, Step
from proxy.tokens.models import ModelTable, ModelWindow, without_date

BUNDLED = Path(__file__).parents[3] / "config" / "models.toml"


@pytest.fixture(scope="module")
def table() -> ModelTable:
    return ModelTable.load(BUNDLED)


SIMILAR = "", "/", "gpt", "gpt-4o-experiment", "my-gpt-4o", "llama3", "gpt-4o:own", "gpt-4o-0806", "qwen3:8b"
DISAGREED = "minimax-m1-80k", "mistral-7b-instruct", "mistral-nemo"
IN_USE = (
    *("deepseek-v4-pro", "deepseek-v4-flash", "glm-4.6", "glm-5", "MiniMax-M2.7", "minimax/minimax-m2", "grok-4"),
    *("meta-llama/llama-4-maverick-17b-128e-instruct", "devstral-medium-latest", "magistral-medium-latest"),
    *("mistral-large-latest", "claude-haiku-5.5", "gemini-3-pro-preview", "gpt-5.1", "google/gemma-3-27b-it"),
    *("deepseek-r1", "deepseek-v3", "llama-3.3-70b-instruct", "kimi-k2-instruct", "qwen3-235b-a22b-thinking-2507"),
)


def test_names_in_use_are_known_and_similar_or_disputed_ones_are_not(table: ModelTable) -> None:
    assert [model for model in (*SIMILAR, *DISAGREED) if table.find(model) is not None] == []
    found = {model: table.find(model) for model in IN_USE}
    assert [model for model, known in found.items() if known is None or known.window < 100_000] == []


@pytest.mark.parametrize(
    ("spellings", "window"),
    [
        ("gpt-4o openai/gpt-4o openrouter/openai/gpt-4o gpt-4o-2024-11-20 GPT-4o gpt-4o:free", 128_000),
        ("gpt-4", 8_192),
        ("gpt-4.1", 1_047_576),
        ("claude-sonnet-4-5-20250929 vertex_ai/claude-sonnet-4-5@20250929", 200_000),
        ("claude-sonnet-4-5 anthropic/claude-sonnet-4.5 us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("claude-4.5-sonnet databricks-claude-sonnet-4-5 global.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("anthropic/claude-sonnet-4 eu.anthropic.claude-sonnet-4-20250514-v1:0 claude-4-sonnet-20250514", 200_000),
        ("claude-opus-4-7[1m] anthropic.claude-opus-4-7 anthropic/claude-opus-4.7 claude-opus-4-6-v1", 1_000_000),
        ("meta-llama/Llama-3.1-70B-Instruct us.meta.llama3-1-70b-instruct-v1:0 llama-v3p1-70b-instruct", 131_072),
        ("openai/gpt-oss-120b openai.gpt-oss-120b-1:0 gpt-oss-120b:free gpt-oss-120b-maas", 131_072),
        ("kimi-k2.6 moonshotai/Kimi-K2.6 accounts/fireworks/models/kimi-k2p6", 262_144),
        ("deepseek-v3.2 deepseek-ai/DeepSeek-V3.2 deepseek-v3p2", 163_840),
        ("amazon.nova-pro-v1:0 us.amazon.nova-pro-v1:0 amazon/nova-pro-v1", 300_000),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 qwen.qwen3-coder-480b-a35b-instruct", 262_144),
    ],
)
def test_every_spelling_of_a_model_has_its_window(table: ModelTable, spellings: str, window: int) -> None:
    found = {model: table.find(model) for model in spellings.split()}
    assert {model: known and known.window for model, known in found.items()} == dict.fromkeys(found, window)


def test_a_model_may_have_a_long_window_or_an_input_limit(table: ModelTable) -> None:
    models = "claude-sonnet-4-5", "claude-sonnet-4-20250514", "claude-haiku-4-5", "claude-3-7-sonnet-20250219", "gpt-4o"
    found = [table.find(model) for model in models]
    assert [known.long for known in found if known] == [1_000_000, 1_000_000, None, None, None]
    assert table.find("gpt-5-2025-08-07") == ModelWindow(400_000, max_input=272_000)


def test_a_dated_name_goes_before_its_family(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[models]\n"m-2024-05-13" = { window = 9 }\n"m-2024-08-06" = { window = 5 }')
    table = ModelTable.load(path)
    assert [known.window for name in ("m", "m-2024-05-13") if (known := table.find(name))] == [5, 9]
    table = ModelTable({"m": ModelWindow(10), "m-2024-05-13": ModelWindow(5)})
    assert [found.window for name in ("m-2024-05-13", "m-2024-08-06") if (found := table.find(name))] == [5, 10]
    dated = {"o1-2024-12-17": "o1", "c-20250929": "c", "kimi-k2-0905": "kimi-k2-0905", "m-20259999": "m-20259999"}
    for model, undated in dated.items():
        assert without_date(model) == undated


def test_the_bundled_table_is_consistent_compact_and_says_where_it_is_from() -> None:
    text = BUNDLED.read_text(encoding="utf-8")
    windows, rest = text.split("[prices]")
    prices, steps = rest.split("[steps]")
    assert re.search(r'sources = \["litellm==\d', text)
    assert ModelTable.load(BUNDLED).made > date(2026, 11, 1)
    for part in (windows, prices.split("[prices_from.")[0], steps):
        entries = [line for line in part.splitlines() if line.startswith('"')]
        assert entries == sorted(entries, key=lambda line: line.split('"')[1])
    assert len(text.splitlines()) < 1_000
    for limits in ModelTable.load(BUNDLED)._models.values():
        assert 1_024 <= limits.window <= 10_000_000
        assert (limits.max_input or 0) < limits.window


@pytest.mark.parametrize("text", ['[models]\n"m" = { size = 1 }', '[models]\n"m" = 5', "models = 3", "]"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"."):
        ModelTable.load(path)


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
    assert making.limits_of("gpt-5", row("openai", given, output)) == limits


def test_a_vendor_speaks_for_its_own_models_only() -> None:
    table = {
        "gpt-4o": row("openai", 128_000),
        "azure/eu/gpt-4o": row("azure", 64_000),
        "gpt-4o-mini-tts": row("openai", 2_000),
        "text-embedding-3": row("openai", 8_191, mode="embedding"),
        "gpt-5.5-cyber": row("openai", None),
    }
    assert making.merge([table]) == {"gpt-4o": Limits(128_000)}


PUBLISHED_WEIGHTS = (
    *("gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b-it", "gemma3", "c4ai-aya-expanse-32b", "command-r", "command-r-plus"),
    *("qwen2.5-72b-instruct", "qwen3-32b", "qwen3-30b-a3b", "qwen3.5-397b-a17b", "qwen3-next-80b-a3b-instruct"),
    *("qwen3-coder-480b-a35b-instruct", "qwq-32b", "nvidia-nemotron-nano-9b-v2", "mimo-v2.5-pro", "grok-2"),
    *("mixtral-8x7b-instruct-v0.1", "ministral-8b-2512", "mistral-small", "mistral-small-2603", "mistral-large-3"),
    *("open-mistral-nemo", "devstral-small-2507", "devstral-2512", "pixtral-12b-2409", "magistral-small-2506"),
    *("voxtral-small-2507", "deepseek-r1", "deepseek-v3.2", "deepseek-coder", "glm-4.6", "glm-4.5-air"),
    *("kimi-k2-instruct", "kimi-k2-thinking", "kimi-k2.5", "minimax-m2", "minimax-m2.5"),
)


VENDORS_OWN = (
    *("gpt-4o", "o3", "claude-sonnet-4-5", "gemini-2.5-flash", "grok-4", "grok-2-latest", "sonar-pro"),
    *("mistral-small-latest", "mistral-medium-2505", "mistral-large-2411", "magistral-small-latest"),
    *("deepseek-chat", "deepseek-reasoner", "kimi-latest", "kimi-k2-turbo-preview", "moonshot-v1-32k"),
    *("qwen-plus", "qwen3-max", "qwen3-coder-plus", "command-r-08-2024", "nova-pro-v1"),
)


def test_names_of_published_weights_are_told_from_their_vendors_own() -> None:
    assert [name for name in PUBLISHED_WEIGHTS if not making.WEIGHTS.match(name)] == []
    assert [name for name in VENDORS_OWN if making.WEIGHTS.match(name)] == []


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
    merged = making.merge([hosted("glm-4.6", **windows)])
    assert merged == ({} if known is None else {"glm-4-6": Limits(known)})


def test_hosts_do_not_outweigh_a_vendor_and_dates_say_something_new() -> None:
    table = hosted("qwen3-max-2026-01-23", dashscope=262_144, a=1_000_000, b=1_000_000)
    assert {limits.window for limits in making.merge([table]).values()} == {262_144}
    models = {"o1": Limits(200), "o1-2024-12-17": Limits(200), "o1-2024-01-01": Limits(100)}
    assert making.prune(models) == {"o1": Limits(200), "o1-2024-01-01": Limits(100)}


def test_a_newer_table_goes_before_an_older_one_of_its_host() -> None:
    first = {"fireworks_ai/glm-4p6": row("fireworks_ai", 205), "ollama/glm-4.6:9b": row("ollama", 4)}
    second = {**hosted("glm-4.6", a=205, fireworks_ai=900), "b/glm-4.6:9b": row("b", 4)}
    assert making.merge([first, second]) == {"glm-4-6": Limits(205)}
    newer = {"gpt-4o": row("openai", 128_000)}
    older = {"gpt-4o": row("openai", 64_000), "gpt-4-0314": row("openai", 8_192)}
    assert making.merge([newer, older]) == {"gpt-4o": Limits(128_000), "gpt-4-0314": Limits(8_192)}


def test_a_claude_with_a_price_for_long_prompts_takes_a_million_tokens() -> None:
    long = {**row("bedrock", 200_000), making.LONG_PRICE: 6e-06}
    table = {
        "claude-sonnet-4-5": row("anthropic", 200_000),
        "claude-haiku-4-5": row("anthropic", 200_000),
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0": long,
        "us.anthropic.claude-3-5-sonnet-20241022-v2:0": long,
    }
    merged = making.merge([table])
    assert (merged["claude-sonnet-4-5"].long, merged["claude-haiku-4-5"].long) == (1_000_000, None)


def test_entries_are_written_sorted_one_a_line() -> None:
    costs = Cost(2.5, 1.25, 2.5, 10.0), Step(272_000, 2.0, 1.5), {"2026-12-01": Cost(5.0, 2.5, 5.0, 20.0)}
    prices = {"c": Priced(*costs)}
    known = Known({"b": Limits(2), "a": Limits(3, 2, 1)}, prices, ["litellm==1"])
    text = making.render(known, date(2026, 11, 29))
    assert 'made = 2026-11-29\nsources = ["litellm==1"]\n' in text
    assert '[models]\n"a" = { window = 3, max_input = 2, max_output = 1 }\n"b" = { window = 2 }\n' in text
    assert '[prices]\n"c" = [2.5, 1.25, 2.5, 10.0]\n' in text
    assert '[prices_from.2026-12-01]\n"c" = [5.0, 2.5, 5.0, 20.0]\n' in text
    assert text.endswith('[steps]\n"c" = { above = 272000, input = 2.0, output = 1.5 }\n')


def test_the_lowest_size_above_which_a_prompt_costs_more_is_a_step() -> None:
    above = {"input_cost_per_token_above_272k_tokens": 5e-06, "output_cost_per_token_above_272k_tokens": 3e-06}
    dearer = {**row("openai", 128_000), "input_cost_per_token": 2.5e-06, "output_cost_per_token": 2e-06, **above}
    assert making.step_of(dearer) == Step(272_000, 2.0, 1.5)
    assert making.step_of({**dearer, "input_cost_per_token_above_128k_tokens": 3e-06}) == (128_000, 1.2, 1.0)
    assert making.step_of(row("openai", 128_000)) is None


def test_prices_are_the_vendors_own_for_a_million_tokens() -> None:
    cached = {**row("openai", 128_000), "input_cost_per_token": 2.5e-06, "cache_read_input_token_cost": 1.25e-06}
    plain = {**row("openai", 128_000), "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}
    table = {"gpt-4o": cached, "gpt-4": plain, "gpt-3.5-turbo": row("openai", 16_000)}
    assert making.priced([table]) == {
        "gpt-4o": Priced(Cost(2.5, 1.25, 2.5, 0.0)),
        "gpt-4": Priced(Cost(1.0, 1.0, 1.0, 2.0)),
    }


def at(*day: int) -> float:
    return datetime(*day, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


def test_prices_change_on_the_day_that_they_were_announced_for(table: ModelTable) -> None:
    """Two models of Google's double on 1 December 2026."""
    change = at(2026, 12, 1)
    for model in ("gemini-4-argon", "gemini-4-carbon"):
        before, after = (table.prices(model, now) for now in (change - 1, change))
        assert before is not None
        assert after is not None
        assert (after.input, after.output) == (2 * before.input, 2 * before.output)
    assert table.prices("gpt-4o", change) == table.prices("gpt-4o", 0)
    changes = [table.next_change(now) for now in (0, change - 1, change, at(2027, 1, 1))]
    assert changes == [change, change, at(2027, 1, 1), float("inf")]


def test_an_unknown_version_of_a_known_model_has_a_relative_and_no_window(table: ModelTable) -> None:
    relatives = {"gpt-6.9-sol": "gpt-6-2-sol", "anthropic/claude-opus-5.9": "claude-opus-5-5"}
    assert {model: table.relative(model) for model in relatives} == relatives
    assert [table.relative(model) for model in ("novel-7", "qwen3:8b", "")] == [None, None, None]
    assert table.find("gpt-6.9-sol") is None
    assert table.prices("gpt-6.9-sol", 0) is None


AGENTS = {
    "Claude Code 2.1.332": ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-4-5-20251001", "claude-fable-5-2"),
    "Codex 0.171.0": ("gpt-6.2-sol", "gpt-6.2-astra"),
    "opencode 1.18.33": ("gpt-5", "claude-sonnet-4", "gemini-3-pro-preview"),
    "aider 0.86.2": ("claude-sonnet-4-20250514", "gpt-4o", "deepseek-chat", "deepseek-r1:free"),
}
"""The models that the agents use unless told otherwise, by the packages of these versions."""


@pytest.mark.parametrize("agent", AGENTS)
def test_the_models_that_agents_use_by_default_are_known(agent: str, table: ModelTable) -> None:
    assert [model for model in AGENTS[agent] if table.find(model) is None] == []
