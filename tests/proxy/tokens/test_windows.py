"""The bundled table answers for exact names, and for nothing that only looks similar."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.tokens.models import ModelTable, ModelWindow, without_date

BUNDLED = Path(__file__).parents[3] / "config" / "models.toml"


@pytest.fixture(scope="module")
def table() -> ModelTable:
    return ModelTable.load(BUNDLED)


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o", 128_000),
        ("openai/gpt-4o", 128_000),
        ("openrouter/openai/gpt-4o", 128_000),
        ("gpt-4o-2024-11-20", 128_000),
        ("GPT-4o", 128_000),
        ("gpt-4", 8_192),
        ("gpt-4.1", 1_047_576),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("vertex_ai/claude-sonnet-4-5@20250929", 200_000),
        ("gpt-4o:free", 128_000),
    ],
)
def test_a_model_is_found_by_name_without_vendor_and_date(table: ModelTable, model: str, window: int) -> None:
    found = table.find(model)
    assert found is not None
    assert found.window == window


@pytest.mark.parametrize(
    "model", ["", "/", "gpt", "gpt-4o-experiment", "my-gpt-4o", "llama3", "gpt-4o:own", "gpt-4o-0806", "qwen3:8b"]
)
def test_a_similar_name_is_unknown(table: ModelTable, model: str) -> None:
    assert table.find(model) is None


@pytest.mark.parametrize("model", ["minimax-m1-80k", "mistral-7b-instruct", "mistral-nemo"])
def test_a_model_on_whose_window_no_hosts_agree_is_unknown(table: ModelTable, model: str) -> None:
    assert table.find(model) is None


@pytest.mark.parametrize(
    ("spellings", "window"),
    [
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


@pytest.mark.parametrize(
    "model",
    [
        *("deepseek-v4-pro", "deepseek-v4-flash", "glm-4.6", "glm-5", "MiniMax-M2.7", "minimax/minimax-m2", "grok-4"),
        *("meta-llama/llama-4-maverick-17b-128e-instruct", "devstral-medium-latest", "magistral-medium-latest"),
        *("mistral-large-latest", "claude-haiku-5.5", "gemini-3-pro-preview", "gpt-5.1", "google/gemma-3-27b-it"),
        *("deepseek-r1", "deepseek-v3", "llama-3.3-70b-instruct", "kimi-k2-instruct", "qwen3-235b-a22b-thinking-2507"),
    ],
)
def test_models_that_people_use_are_known(table: ModelTable, model: str) -> None:
    found = table.find(model)
    assert found is not None
    assert found.window >= 100_000


def test_a_million_tokens_are_for_models_that_have_them(table: ModelTable) -> None:
    models = "claude-sonnet-4-5", "claude-sonnet-4-20250514", "claude-haiku-4-5", "claude-3-7-sonnet-20250219", "gpt-4o"
    found = [table.find(model) for model in models]
    assert [known.long for known in found if known] == [1_000_000, 1_000_000, None, None, None]


def test_a_family_is_known_by_the_smallest_of_its_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[models]\n"m-2024-05-13" = { window = 9 }\n"m-2024-08-06" = { window = 5 }')
    table = ModelTable.load(path)
    assert [known.window for name in ("m", "m-2024-05-13") if (known := table.find(name))] == [5, 9]


def test_an_input_limit_of_its_own_is_told_from_the_window(table: ModelTable) -> None:
    assert table.find("gpt-5-2025-08-07") == ModelWindow(400_000, max_input=272_000)


def test_a_dated_entry_goes_before_the_undated_one() -> None:
    table = ModelTable({"m": ModelWindow(10), "m-2024-05-13": ModelWindow(5)})
    assert [found.window for name in ("m-2024-05-13", "m-2024-08-06") if (found := table.find(name))] == [5, 10]


@pytest.mark.parametrize(
    ("model", "undated"),
    [("o1-2024-12-17", "o1"), ("c-20250929", "c"), ("kimi-k2-0905", "kimi-k2-0905"), ("m-20259999", "m-20259999")],
)
def test_only_a_full_date_is_taken_off(model: str, undated: str) -> None:
    assert without_date(model) == undated


def test_the_bundled_table_is_consistent_compact_and_says_where_it_is_from() -> None:
    text = BUNDLED.read_text(encoding="utf-8")
    windows, prices = text.split("[prices]")
    assert re.search(r"source +litellm==\d", text)
    assert re.search(r"made on +20\d\d-\d\d-\d\d", text)
    for part in (windows, prices):
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
