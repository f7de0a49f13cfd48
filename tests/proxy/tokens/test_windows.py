"""The bundled table answers for exact names, and for nothing that only looks similar."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.tokens.windows import ModelTable, ModelWindow, without_date

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
    ],
)
def test_a_model_is_found_by_name_without_vendor_and_date(table: ModelTable, model: str, window: int) -> None:
    found = table.find(model)
    assert found is not None
    assert found.window == window


@pytest.mark.parametrize(
    "model", ["", "/", "gpt", "gpt-4o-experiment", "my-gpt-4o", "llama3", "gpt-4o:free", "gpt-4o-0806"]
)
def test_a_similar_name_is_unknown(table: ModelTable, model: str) -> None:
    assert table.find(model) is None


@pytest.mark.parametrize(
    "model",
    [
        *("gpt-oss:20b", "openai/gpt-oss-20b", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-32B", "qwen3:8b"),
        *("google/gemma-3-27b-it", "deepseek-r1", "deepseek-ai/DeepSeek-V3.2", "mistral-small", "command-r"),
        *("zai-org/GLM-4.6", "moonshotai/Kimi-K2-Instruct", "MiniMaxAI/MiniMax-M2", "xai-org/grok-2"),
    ],
)
def test_the_ceiling_of_a_model_that_servers_load_smaller_is_not_taken_for_its_window(
    table: ModelTable, model: str
) -> None:
    assert table.find(model) is None


def test_an_input_limit_of_its_own_is_told_from_the_window(table: ModelTable) -> None:
    assert table.find("gpt-5-2025-08-07") == ModelWindow(400_000, max_input=272_000)


def test_a_dated_entry_goes_before_the_undated_one() -> None:
    table = ModelTable({"m": ModelWindow(10), "m-2024-05-13": ModelWindow(5)})
    assert [found.window for name in ("m-2024-05-13", "m-2024-08-06") if (found := table.find(name))] == [
        5,
        10,
    ]


@pytest.mark.parametrize(
    ("model", "undated"),
    [
        ("o1-2024-12-17", "o1"),
        ("c-20250929", "c"),
        ("kimi-k2-0905", "kimi-k2-0905"),
        ("m-20259999", "m-20259999"),
    ],
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
