"""The pages of servers whose model list says too little. No I/O.

Each reader takes a decoded page and returns a `Reading`, which may have no window yet, or None if the page does not
have its server's form: several servers answer 200 to every path. The pages stand beside `/v1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from proxy.discovery.reading import Reading, ServerKind, by_name, members, smallest, stated_window
from proxy.learning.stated_windows import StatedWindow

CEILINGS = "ollama"
"""The beginning of LiteLLM's names for models at Ollama; it states their ceilings, as Ollama's `/api/show` does."""


def llama_cpp_properties(page: object) -> Reading | None:
    """llama.cpp's `/props`: `n_ctx` is that of one slot there, not that of all slots together."""
    settings = page.get("default_generation_settings") if isinstance(page, Mapping) else None
    if not isinstance(settings, Mapping):
        return None
    return Reading(ServerKind.LLAMA_CPP, only=stated_window(ServerKind.LLAMA_CPP, settings.get("n_ctx")))


def llama_cpp_slots(page: object) -> Reading | None:
    """llama.cpp's `/slots`: a request may get any slot, so the smallest window counts."""
    if not isinstance(page, list) or not all(isinstance(slot, Mapping) and "n_ctx" in slot for slot in page):
        return None
    return Reading(
        ServerKind.LLAMA_CPP, only=stated_window(ServerKind.LLAMA_CPP, smallest(slot["n_ctx"] for slot in page))
    )


def ollama_running(page: object) -> Reading | None:
    """Ollama's `/api/ps`: the models that are loaded now, each with the window it was loaded with.

    `/api/show` states a model's ceiling, and is not asked.
    """
    if not isinstance(page, Mapping) or not isinstance(page.get("models"), list):
        return None
    loaded = (
        (name, stated_window(ServerKind.OLLAMA, row.get("context_length")))
        for row in members(page, "models")
        for name in _names(row.get("name"), row.get("model"))
    )
    return Reading(ServerKind.OLLAMA, by_name(loaded))


def _names(*candidates: object) -> set[str]:
    """The names of a model as requests may write them, with and without the tag `latest`."""
    names = {name for name in candidates if isinstance(name, str)}
    return names | {name.removesuffix(":latest") for name in names}


def lm_studio_models(page: object) -> Reading | None:
    """LM Studio's `/api/v0/models`: `loaded_context_length` of loaded models; `max_context_length` is the ceiling."""
    rows = members(page, "data")
    if not any("max_context_length" in row or "compatibility_type" in row for row in rows):
        return None
    loaded = ((row.get("id"), stated_window(ServerKind.LM_STUDIO, row.get("loaded_context_length"))) for row in rows)
    return Reading(ServerKind.LM_STUDIO, by_name(loaded))


def lm_studio_instances(page: object) -> Reading | None:
    """LM Studio's newer `/api/v1/models`: each loaded instance has a name and a window of its own."""
    rows = members(page, "models")
    if not any("loaded_instances" in row for row in rows):
        return None
    return Reading(ServerKind.LM_STUDIO, by_name(pair for row in rows for pair in _instances(row)))


def _instances(row: Mapping[str, Any]) -> Iterator[tuple[object, StatedWindow | None]]:
    for instance in members(row, "loaded_instances"):
        config = instance.get("config")
        window = (
            stated_window(ServerKind.LM_STUDIO, config.get("context_length")) if isinstance(config, Mapping) else None
        )
        yield instance.get("id"), window
        yield row.get("key"), window


def tgi_info(page: object) -> Reading | None:
    """TGI's `/info`: the window, and the most input; older versions give the latter another name."""
    if not isinstance(page, Mapping) or "max_total_tokens" not in page:
        return None
    most = page.get("max_input_tokens", page.get("max_input_length"))
    return Reading(ServerKind.TGI, only=stated_window(ServerKind.TGI, page["max_total_tokens"], most))


def litellm_deployments(page: object) -> Reading | None:
    """LiteLLM's `/model/info`: of several deployments of one name the smallest window counts.

    What it calls the most input is, for nearly all models, the window that input and output share. It does not know how
    a server behind it has loaded a model.
    """
    rows = [row for row in members(page, "data") if isinstance(row.get("model_info"), Mapping)]
    if not rows or not all("model_name" in row for row in rows):
        return None
    return Reading(ServerKind.LITELLM, by_name((row["model_name"], _deployment_window(row)) for row in rows))


def _deployment_window(row: Mapping[str, Any]) -> StatedWindow | None:
    params = row.get("litellm_params")
    target = str(params.get("model", "")) if isinstance(params, Mapping) else ""
    if target.startswith(CEILINGS):
        return None
    return stated_window(ServerKind.LITELLM, row["model_info"].get("max_input_tokens"))


class Page(NamedTuple):
    """A page on which a server states what it has loaded; the path is relative to the address that `/v1` stands at."""

    kind: ServerKind
    path: str
    read: Callable[[object], Reading | None]


PAGES = (
    Page(ServerKind.LLAMA_CPP, "/props", llama_cpp_properties),
    Page(ServerKind.LLAMA_CPP, "/slots", llama_cpp_slots),
    Page(ServerKind.OLLAMA, "/api/ps", ollama_running),
    Page(ServerKind.LM_STUDIO, "/api/v0/models", lm_studio_models),
    Page(ServerKind.LM_STUDIO, "/api/v1/models", lm_studio_instances),
    Page(ServerKind.TGI, "/info", tgi_info),
    Page(ServerKind.LITELLM, "/model/info", litellm_deployments),
)
"""In the order in which a server of unknown kind is asked; a page of one server means nothing to another."""
