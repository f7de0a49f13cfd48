"""Reading the windows that servers have loaded from their answers, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.servers.discovery import ANY_NAME, PAGES, Page, Reading, ServerKind, kind_of, windows_in
from proxy.tokens.models import StatedWindow
from tests.proxy.servers import pages

ASKED = {page.path: page for page in PAGES}


def windows(reading: Reading | None) -> dict[str, int]:
    assert reading is not None
    return {name: each.window for name, each in reading.windows.items() if name != ANY_NAME}


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        (pages.VLLM, ServerKind.VLLM),
        (pages.SGLANG, ServerKind.SGLANG),
        (pages.LLAMA_CPP, ServerKind.LLAMA_CPP),
        (pages.LLAMA_CPP_ROUTER, ServerKind.LLAMA_CPP),
        (pages.OLLAMA, ServerKind.OLLAMA),
        (pages.LM_STUDIO, ServerKind.LM_STUDIO),
        (pages.TGI, ServerKind.TGI),
        (pages.LITELLM, ServerKind.LITELLM),
        (pages.OPENROUTER, ServerKind.OPENROUTER),
        (pages.GROQ, None),
        (pages.OPENAI, None),
        ({"object": "list", "data": []}, None),
    ],
)
def test_most_servers_are_known_by_their_model_list(listed: object, kind: ServerKind | None) -> None:
    assert kind_of(listed) is kind


@pytest.mark.parametrize(
    ("listed", "stated"),
    [
        (pages.VLLM, {"meta-llama/Meta-Llama-3.1-8B-Instruct": 8_096}),
        (pages.VLLM_WITH_ADAPTER, {"base": 16_384, "sql-lora": 16_384}),
        (pages.SGLANG, {"Qwen/Qwen3.5-4B": 16_384}),
        (pages.LLAMA_CPP, {"Ling-3.0-flash-Q4_K_M": 65_536}),
        (pages.LLAMA_CPP_ROUTER, {"gemma": 8_192}),
        (pages.OPENROUTER, {"qwen/qwen3-coder:free": 262_000, "openai/gpt-4o": 128_000}),
        (pages.GROQ, {"llama-3.3-70b-versatile": 131_072, "gemma2-9b-it": 8_192}),
        (pages.TOGETHER, {"zai-org/GLM-4.6": 202_752}),
        (pages.MOONSHOT, {"kimi-k9": 262_144}),
        ({"data": [{"id": "a", "metadata": {"context_length": 32_768}}]}, {"a": 32_768}),
        ({"data": [{"id": "a", "capabilities": {"limits": {"max_context_window_tokens": 128_000}}}]}, {"a": 128_000}),
    ],
)
def test_a_list_that_states_windows_is_enough(listed: object, stated: dict[str, int]) -> None:
    assert windows(windows_in(listed)) == stated


def test_a_list_says_which_names_its_windows_hold_for() -> None:
    listed = windows_in(pages.OPENROUTER)
    assert listed is not None
    found = [listed.of(f"openai/gpt-4o{suffix}") for suffix in (":nitro", ":floor", ":online", ":free")]
    assert [window.window if window else None for window in found] == [128_000, 128_000, 128_000, None]
    lists = pages.TOGETHER, pages.GROQ, pages.MOONSHOT
    readings = [reading for listed in lists if (reading := windows_in(listed))]
    sources = {each.source for reading in readings for each in reading.windows.values()}
    assert sources == {"stated by the upstream", "a maximum listed by the upstream"}
    assert all(each.is_ceiling for reading in readings for each in reading.windows.values())
    alone, router = windows_in(pages.LLAMA_CPP), windows_in(pages.LLAMA_CPP_ROUTER)
    assert alone is not None
    assert router is not None
    assert (alone.of("gpt-4o"), router.of("gpt-4o")) == (StatedWindow(65_536, None, "stated by llama.cpp"), None)
    reading = ASKED["/props"].read(
        {"default_generation_settings": {"n_ctx": 0, "params": {}}, "role": "router"}, ServerKind.LLAMA_CPP
    )
    assert reading == Reading(ServerKind.LLAMA_CPP)


def test_ceilings_and_odd_numbers_are_no_windows() -> None:
    for listed in [
        pages.LLAMA_CPP_OLDER,
        pages.OLLAMA,
        pages.LM_STUDIO,
        pages.LM_STUDIO_V0,
        pages.TGI,
        pages.LITELLM,
        pages.OPENAI,
    ]:
        assert windows_in(listed) is None
    odd: list[object] = [0, -1, 1, 255, 10**12, True, None, "8192", 8192.0, [8192], {}]
    for value in odd:
        row = {"id": "m", "owned_by": "vllm", "max_model_len": value}
        assert windows_in({"data": [row]}) is None


@pytest.mark.parametrize(
    ("path", "page", "stated"),
    [
        ("/api/ps", pages.OLLAMA_PS, {"gemma4:latest": 4_096, "gemma4": 4_096}),
        ("/api/ps", pages.OLLAMA_PS_OLDER, {}),
        ("/api/ps", {"models": []}, {}),
        ("/api/v0/models", pages.LM_STUDIO_V0, {"qwen3-8b": 4_096}),
        ("/api/v1/models", pages.LM_STUDIO_V1, {"qwen/qwen3-8b": 8_192, "qwen/qwen3-8b:2": 8_192}),
        ("/model/info", pages.LITELLM_INFO, {"work-laptop-smart": 32_768}),
    ],
)
def test_a_page_states_what_is_loaded_by_name(path: str, page: object, stated: dict[str, int]) -> None:
    assert windows(ASKED[path].read(page, ASKED[path].kind)) == stated


@pytest.mark.parametrize(
    ("path", "page", "found"),
    [
        ("/props", pages.LLAMA_CPP_PROPS, StatedWindow(1_024, None, "stated by llama.cpp")),
        ("/slots", pages.LLAMA_CPP_SLOTS, StatedWindow(65_536, None, "stated by llama.cpp")),
        ("/info", pages.TGI_INFO, StatedWindow(2_048, 1_024, "stated by TGI")),
        ("/info", pages.TGI_INFO_OLDER, StatedWindow(2_048, 1_024, "stated by TGI")),
        ("/info", {**pages.TGI_INFO, "max_input_tokens": 2_048}, StatedWindow(2_048, None, "stated by TGI")),
    ],
)
def test_a_server_of_one_model_states_its_window_for_any_name(path: str, page: object, found: StatedWindow) -> None:
    reading = ASKED[path].read(page)
    assert reading is not None
    assert reading.of("whatever-a-client-calls-it") == found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_what_another_server_answers_to_a_page_is_no_reading(page: Page) -> None:
    own = {
        "/props": {"LLAMA_CPP_PROPS"},
        "/slots": {"LLAMA_CPP_SLOTS"},
        "/api/ps": {"OLLAMA_PS"},
        "/api/v0/models": {"LM_STUDIO_V0"},
        "/api/v1/models": {"LM_STUDIO_V1"},
        "/info": {"TGI_INFO", "TGI_INFO_OLDER"},
        "/model/info": {"LITELLM_INFO"},
    }[page.path]
    told = {name for name, body in pages.EVERY.items() if page.read(body) is not None}
    assert told == own


def test_only_a_server_that_loads_by_itself_keeps_an_unloaded_window() -> None:
    first = Reading(ServerKind.OLLAMA, {"a": StatedWindow(4_096, None, ""), "b": StatedWindow(8_192, None, "")})
    second = Reading(ServerKind.OLLAMA, {"a": StatedWindow(16_384, None, "")})
    assert windows(second.after(first)) == {"a": 16_384, "b": 8_192}
    assert windows(second.after(Reading(ServerKind.LM_STUDIO, first.windows))) == {"a": 16_384}
    first = Reading(ServerKind.VLLM, {"a": StatedWindow(4_096, None, ""), "b": StatedWindow(8_192, None, "")})
    assert windows(Reading(ServerKind.VLLM, {"a": StatedWindow(4_096, None, "")}).after(first)) == {"a": 4_096}


def test_a_restarted_server_has_the_window_it_states_now() -> None:
    def started(*names: str, window: int) -> Reading:
        return Reading(ServerKind.LLAMA_CPP, dict.fromkeys(names, StatedWindow(window, None, "")))

    alone, router = started("a", ANY_NAME, window=65_536), started("b", window=4_096)
    again = started("b", ANY_NAME, window=8_192).after(alone)
    assert [window and window.window for window in map(again.of, ("a", "b", "gpt-4o"))] == [8_192] * 3
    assert router.after(alone).of("gpt-4o") is None
    assert Reading(ServerKind.LLAMA_CPP).after(alone).windows == alone.windows


KEYS = st.sampled_from(
    """data id owned_by models name model context_length meta n_ctx max_model_len parent top_provider active
    context_window capabilities max_context_length type max_input_tokens created status default_generation_settings
    loaded_context_length loaded_instances config key max_total_tokens max_input_length model_info model_name
    litellm_params compatibility_type""".split()  # noqa: SIM905 - a table of words
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 10**6),
    st.floats(),
    st.sampled_from(["vllm", "llamacpp", "library", "organization_owner", "m", "model", "ollama/m"]),
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=30
)


@given(JSON | st.builds(lambda rows: {"data": rows, "models": rows}, st.lists(st.dictionaries(KEYS, JSON, max_size=6))))
def test_no_answer_makes_a_reader_fail(body: object) -> None:
    assert kind_of(body) in {None, *ServerKind}
    readings = [windows_in(body), *(page.read(body) for page in PAGES)]
    assert all(isinstance(each, Reading | None) for each in readings)
