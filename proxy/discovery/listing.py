"""The model list, `GET /v1/models`: what kind of server answers, and which windows it states there. No I/O.

| server | recognised by | window |
|---|---|---|
| vLLM, SGLang, others | `max_model_len` | `max_model_len` |
| llama.cpp | `owned_by: llamacpp` | `meta.n_ctx`, which is that of one slot; never `meta.n_ctx_train` |
| OpenRouter | `top_provider` | the smaller of its `context_length` and the model's |
| Groq | `active`, `context_window` | `context_window` |
| Mistral | `capabilities`, `max_context_length` | `max_context_length` |
| Anthropic | `type: model`, `max_input_tokens` | `max_input_tokens` |
| Ollama | `owned_by: library` | on a page of its own |
| LM Studio | `owned_by: organization_owner` | on a page of its own |
| LiteLLM | all rows `created` at one moment of 2023 | on a page of its own |
| TGI | one row that belongs to itself | on a page of its own |

On other servers `max_context_length` is a model's ceiling, and `context_length` may be one: neither is taken from a row
that does not look like a host's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.discovery.reading import Reading, ServerKind, by_name, members, smallest, stated_window
from proxy.learning.stated_windows import StatedWindow

Row = Mapping[str, Any]

OWNERS = {
    "vllm": ServerKind.VLLM,
    "sglang": ServerKind.SGLANG,
    "llamacpp": ServerKind.LLAMA_CPP,
    "library": ServerKind.OLLAMA,
    "organization_owner": ServerKind.LM_STUDIO,
}
LITELLM_CREATED = 1_677_610_602
"""The time at which, by LiteLLM's list, every model was created."""


def kind_of(data: object) -> ServerKind | None:
    """The kind of server that sent this model list; None if the list does not show it."""
    rows = members(data, "data")
    owners = {OWNERS.get(str(row.get("owned_by"))) for row in rows}
    if len(owners) == 1 and (owner := owners.pop()) is not None:
        return owner
    if rows and all("top_provider" in row for row in rows):
        return ServerKind.OPENROUTER
    if rows and all(row.get("created") == LITELLM_CREATED for row in rows):
        return ServerKind.LITELLM
    if len(rows) == 1 and rows[0].get("owned_by") == rows[0].get("id"):
        return ServerKind.TGI
    return None


def windows_in(data: object) -> Reading | None:
    """The windows that a model list states; None if it states none."""
    rows, kind = members(data, "data"), kind_of(data) or ServerKind.HOST
    if kind is ServerKind.LITELLM:
        return None  # its list does not distinguish windows from ceilings
    windows = by_name((row.get("id"), _window(row, rows, kind)) for row in rows)
    if not windows:
        return None
    return Reading(kind, windows, _only_window(rows, windows, kind))


def _window(row: Row, rows: Sequence[Row], kind: ServerKind) -> StatedWindow | None:
    if "max_model_len" in row:
        return stated_window(kind, row["max_model_len"] or _of_parent(row, rows))
    if kind is ServerKind.LLAMA_CPP:
        meta = row.get("meta")
        return stated_window(kind, meta.get("n_ctx")) if isinstance(meta, Mapping) else None
    if kind is ServerKind.OPENROUTER:
        provider = row["top_provider"]
        provided = provider.get("context_length") if isinstance(provider, Mapping) else None
        return stated_window(kind, smallest((row.get("context_length"), provided)))
    return stated_window(kind, _host_window(row)) if kind is ServerKind.HOST else None


def _of_parent(row: Row, rows: Sequence[Row]) -> object:
    """The window of the model that an adapter is for: vLLM states none for the adapter itself."""
    return next((each.get("max_model_len") for each in rows if each.get("id") == row.get("parent")), None)


def _host_window(row: Row) -> object:
    if "active" in row:
        return row.get("context_window")
    if isinstance(row.get("capabilities"), Mapping):
        return row.get("max_context_length")
    return row.get("max_input_tokens") if row.get("type") == "model" else None


def _only_window(rows: Sequence[Row], windows: Mapping[str, StatedWindow], kind: ServerKind) -> StatedWindow | None:
    """llama.cpp answers by any name with the one model it has loaded; with `status` it routes to several by name."""
    is_one = kind is ServerKind.LLAMA_CPP and len(rows) == 1 and "status" not in rows[0]
    return next(iter(windows.values())) if is_one else None
