"""Discovery: the window of a model as the server behind the upstream's address has loaded it.

A model's ceiling is the window that it was trained for; servers load most models with a smaller one. Only windows that
a server has loaded, or that a host says it serves, are used; otherwise the window stays unknown.

Only the addresses in the settings are asked, each with the operator's key for it or with none, and never an address
that a request names. No request waits for an answer. Answers are kept for a while, including those that state no
window. A server that loads models on demand is asked again after each reply, because only then has it surely loaded the
model, maybe with another window than the last time.

A vendor's list of models says what this caller gets: a login may have other windows than a key has. So a list that
passes by is read behind the reply and holds for the tenant that it was sent to (`Discovered.read_list`). Where all
callers are one person (`is_for_one`), the server is asked for it once a day, with a credential that it just accepted.

The model list, `GET /v1/models`, shows the kind of most servers and the windows of some (`_stated`); the others have
pages of their own (`PAGES`). docs/reference/configuration.md has a table of servers.

On hosts of no known kind these numbers may be what a model was made for, or need a header that the request has not. So
there they are ceilings: they lower the window of the bundled table, or stand where it has none. Of a server that loads
models on demand, ceilings are not used.

The paths of the other pages (`PAGES`) are relative to the address that has `/v1`. Several servers answer 200 to every
path, so each reader reads only the members of its own server, and finds nothing in any other page.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple

from proxy.errors import UpstreamUnavailable
from proxy.http.encodings import NotDecodable, decoder_for
from proxy.http.headers import ANTHROPIC_VERSION, CREDENTIALS, Headers, encoding_of, first, passing
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers.upstream import Upstream
from proxy.servers.upstream.choice import Destination
from proxy.tokens.models import StatedWindow
from proxy.values import json_or_none, object_at, objects_at

MIN_WINDOW, MAX_WINDOW = 256, 100_000_000  # a number outside these bounds is not a window
LITELLM_CREATED = 1_677_610_602  # the time at which every model was created, according to LiteLLM's list
CEILINGS = "ollama"
"""Prefix of LiteLLM's names for models at Ollama, for which it states the ceilings, like Ollama's `/api/show`."""

LENGTHS = (
    *("context_length", "context_window", "max_context_length", "context_size", "max_context_window_tokens"),
    "max_input_tokens",
)
HOST_MARKS = ("active", "capabilities", "pricing", "metadata", "slug")

ROUTED = re.compile(r":(nitro|floor|online)$")
"""OpenRouter's suffixes that any model may have, so its list has the model without them."""

ANY_NAME = "\0any"  # stands for the name if the server has one model, which it serves under any name

Row = Mapping[str, Any]


class ServerKind(StrEnum):
    """A kind of server, by the name that people know it by."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "Ollama"
    LM_STUDIO = "LM Studio"
    TGI = "TGI"
    LITELLM = "LiteLLM"
    OPENROUTER = "OpenRouter"
    HOST = "the upstream"  # a host whose model list states windows in one of the forms that hosts share

    @property
    def is_local(self) -> bool:
        """Whether such a server usually runs on one person's machine, loads a model when that is first requested, and
        answers one or a few requests at a time."""
        return self in (ServerKind.OLLAMA, ServerKind.LM_STUDIO, ServerKind.LLAMA_CPP)


OWNERS = {
    "vllm": ServerKind.VLLM,
    "sglang": ServerKind.SGLANG,
    "llamacpp": ServerKind.LLAMA_CPP,
    "library": ServerKind.OLLAMA,
    "organization_owner": ServerKind.LM_STUDIO,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The windows that a server stated, by the names of models in requests."""

    kind: ServerKind
    windows: Mapping[str, StatedWindow] = field(default_factory=dict)  # by name, or by `ANY_NAME`
    slots: int | None = None  # how many requests the server answers at a time, if it states that
    shows_tools: bool | None = None  # whether its chat template shows tools to the model, if it states that

    @property
    def is_silent(self) -> bool:
        """Whether it has no window: the server has loaded no model, or does not state windows."""
        return not self.windows

    def of(self, model: str) -> StatedWindow | None:
        """The window of a model; None if the server did not state one."""
        listed = ROUTED.sub("", model) if self.kind is ServerKind.OPENROUTER else model
        return self.windows.get(model) or self.windows.get(listed) or self.windows.get(ANY_NAME)

    def after(self, earlier: Reading | None) -> Reading:
        """This reading, with the earlier windows of models that are not loaded now: the server will use them again.

        A server that serves its one model under any name has no other.
        """
        if earlier is None or earlier.kind is not self.kind or not self.kind.is_local or ANY_NAME in self.windows:
            return self
        named = {name: window for name, window in earlier.windows.items() if name != ANY_NAME or self.is_silent}
        return replace(self, windows={**named, **self.windows})


class Stated(NamedTuple):
    """What a page states about one model, unchecked."""

    name: object  # the name of the model, or `ANY_NAME`
    window: object
    max_input: object = None
    is_ceiling: bool = False


def _reading(kind: ServerKind, stated: Iterable[Stated]) -> Reading:
    """A reading of the stated numbers that can be windows.

    If there are several windows for one name, the smallest counts, because a request may get any of them.
    """
    windows: dict[str, StatedWindow] = {}
    for name, window, max_input, is_ceiling in stated:
        tokens, most = _as_window(window), _as_window(max_input)
        if not isinstance(name, str) or tokens is None or (name in windows and tokens >= windows[name].window):
            continue
        source = f"a maximum listed by {kind}" if is_ceiling else f"stated by {kind}"
        is_bound = is_ceiling or kind is ServerKind.HOST
        windows[name] = StatedWindow(tokens, most if most and most < tokens else None, source, is_bound)
    return Reading(kind, windows)


def _as_window(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if MIN_WINDOW <= value <= MAX_WINDOW else None


# -- the model list --------------------------------------------------------------------------------------


def kind_of(data: object) -> ServerKind | None:
    """The kind of server that sent this model list; None if the list does not show it."""
    rows = _rows(data)
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
    rows, kind = _rows(data), kind_of(data) or ServerKind.HOST
    if kind is ServerKind.LITELLM:
        return None  # its list mixes windows and ceilings
    stated = [_stated(row, rows, kind) for row in rows]
    if kind is ServerKind.LLAMA_CPP and len(rows) == 1 and "status" not in rows[0]:
        # It serves its one model under any name; with `status` it routes to several models by name.
        stated.append(Stated(ANY_NAME, stated[0].window))
    reading = _reading(kind, stated)
    return reading if reading.windows else None


def _rows(data: object) -> list[Row]:
    """The rows of a model list; Together's has no object around them. That of Codex' server names models by `slug`."""
    rows = objects_at({"data": data} if isinstance(data, list) else data, "data")
    return rows or [{**row, "id": row["slug"]} for row in objects_at(data, "models") if "slug" in row]


def _stated(row: Row, rows: Sequence[Row], kind: ServerKind) -> Stated:
    name = row.get("id")
    if "max_model_len" in row:
        # For an adapter vLLM states no window, only for the adapter's model.
        of_parent = (each.get("max_model_len") for each in rows if each.get("id") == row.get("parent"))
        return Stated(name, row["max_model_len"] or next(of_parent, None))
    if kind is ServerKind.LLAMA_CPP:
        return Stated(name, object_at(row, "meta").get("n_ctx"))
    if kind is ServerKind.OPENROUTER:
        stated = row.get("context_length"), object_at(row, "top_provider").get("context_length")
        return Stated(name, min(filter(None, map(_as_window, stated)), default=None))
    if kind is not ServerKind.HOST:
        return Stated(name, None)
    if "state" in row:  # LM Studio's, which states what it has loaded on a page of its own
        return Stated(name, None)
    if row.get("type") == "model":
        return Stated(name, row.get("max_input_tokens"))
    places = row, object_at(row, "metadata"), object_at(object_at(row, "capabilities"), "limits")
    length = next((place[member] for place in places for member in LENGTHS if place.get(member)), None)
    return Stated(name, length, is_ceiling=not any(row.get(mark) for mark in HOST_MARKS))


# -- the pages of servers whose model list says too little -----------------------------------------------


def _llama_cpp_properties(page: object) -> list[Stated]:
    """llama.cpp's `/props`: `n_ctx` is the window of one slot there, not of all slots together."""
    return [Stated(ANY_NAME, object_at(page, "default_generation_settings").get("n_ctx"))]


def _llama_cpp_slots(page: object) -> list[Stated]:
    """llama.cpp's `/slots`: a request may get any slot, so the smallest window counts."""
    return [Stated(ANY_NAME, slot.get("n_ctx")) for slot in objects_at({"slots": page}, "slots")]


def _ollama_running(page: object) -> list[Stated]:
    """Ollama's `/api/ps`: the models that are loaded now, each with the window that it was loaded with.

    Requests may name a model with the tag `latest` or without it. `/api/show` states ceilings, so it is not asked.
    """
    stated: list[Stated] = []
    for row in objects_at(page, "models"):
        for name in filter(None, (row.get("name"), row.get("model"))):
            names = {str(name), str(name).removesuffix(":latest")}
            stated += [Stated(each, row.get("context_length")) for each in names]
    return stated


def _lm_studio_models(page: object) -> list[Stated]:
    """LM Studio's `/api/v0/models`: `loaded_context_length` of loaded models; `max_context_length` is the ceiling."""
    return [Stated(row.get("id"), row.get("loaded_context_length")) for row in objects_at(page, "data")]


def _lm_studio_instances(page: object) -> list[Stated]:
    """LM Studio's newer `/api/v1/models`: each loaded instance has a name and a window of its own."""
    stated: list[Stated] = []
    for row in objects_at(page, "models"):
        for instance in objects_at(row, "loaded_instances"):
            window = object_at(instance, "config").get("context_length")
            stated += [Stated(instance.get("id"), window), Stated(row.get("key"), window)]
    return stated


def _tgi_info(page: object) -> list[Stated]:
    """TGI's `/info`: the window, and the maximum input; older versions give the latter another name."""
    info = object_at({"info": page}, "info")
    return [Stated(ANY_NAME, info.get("max_total_tokens"), info.get("max_input_tokens", info.get("max_input_length")))]


def _litellm_deployments(page: object) -> list[Stated]:
    """LiteLLM's `/model/info`: if a name has several deployments, the smallest window counts.

    For nearly all models, what it calls the maximum input is the window that input and output share. It does not know
    how a server behind it has loaded a model.
    """
    return [
        Stated(row.get("model_name"), object_at(row, "model_info").get("max_input_tokens"))
        for row in objects_at(page, "data")
        if not str(object_at(row, "litellm_params").get("model")).startswith(CEILINGS)
    ]


class Page(NamedTuple):
    """A page on which a server states what it has loaded."""

    kind: ServerKind
    path: str
    stated_in: Callable[[object], list[Stated]]

    def read(self, page: object, kind: ServerKind | None = None) -> Reading | None:
        """The reading of a decoded page; None if it has no window and `kind` is not known to be that of this page."""
        reading = _reading(self.kind, self.stated_in(page))
        return None if reading.is_silent and (page is None or kind is not self.kind) else reading


SLOTS_PAGE = "/props"


def slots_in(page: object) -> int | None:
    """How many requests llama.cpp answers at a time, by its `/props`; None if that does not say."""
    slots = object_at({"page": page}, "page").get("total_slots")
    return slots if isinstance(slots, int) and not isinstance(slots, bool) and slots > 0 else None


def shows_tools(page: object) -> bool | None:
    """Whether llama.cpp's chat template shows tools to the model, by its `/props`; None if that does not say."""
    shown = object_at({"page": page}, "page").get("chat_template_caps")
    found = object_at({"caps": shown}, "caps").get("supports_tools")
    return found if isinstance(found, bool) else None


PAGES = (  # in the order in which a server of unknown kind is asked; only a server's own page states anything
    Page(ServerKind.LLAMA_CPP, SLOTS_PAGE, _llama_cpp_properties),
    Page(ServerKind.LLAMA_CPP, "/slots", _llama_cpp_slots),
    Page(ServerKind.OLLAMA, "/api/ps", _ollama_running),
    Page(ServerKind.LM_STUDIO, "/api/v0/models", _lm_studio_models),
    Page(ServerKind.LM_STUDIO, "/api/v1/models", _lm_studio_instances),
    Page(ServerKind.TGI, "/info", _tgi_info),
    Page(ServerKind.LITELLM, "/model/info", _litellm_deployments),
)


MAX_SECONDS = 10.0  # the time for all pages together
MAX_BYTES = 2 * 1024 * 1024  # Larger pages are not read. The largest known is a host's list of 400 models, 0.7 MB.
MOMENT = 1.0  # seconds
KEPT = 600.0  # seconds until a server that stated windows is asked again
SILENCE_KEPT = 900.0  # the same for one that stated none
FAILURE_KEPT = 30.0  # the same for one that could not be reached
LIST_KEPT = 86_400.0  # seconds until a list is asked for again with a caller's credential
LIST_PATH = "/v1/models"
MAX_LISTS, MAX_LISTED = 500, 10_000
"""Of each upstream: the tenants whose lists are remembered, and the models of one list."""
_OF_ACCOUNT = passing([*CREDENTIALS, b"anthropic-*", b"openai-*", b"chatgpt-*"])  # whose account, and which API

_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Discovered:
    """The kind and the windows of one upstream's server, `at`; `clock` gives seconds.

    Nothing is asked unless `enabled`.
    """

    at: Destination
    upstream: Upstream
    tasks: OwnedTasks
    clock: Callable[[], float]
    _: KW_ONLY
    enabled: bool = True
    is_for_one: bool = False  # whether the lists may be asked for with a caller's credential, because all are one's
    lists: Lru[str, Reading] = field(default_factory=lambda: Lru(MAX_LISTS))
    """What the server's list of models told each tenant that was sent it."""
    _list_due: float = float("-inf")
    _reading: Reading | None = None
    _page: Page | None = None
    _due: float = float("-inf")

    @property
    def kind(self) -> ServerKind | None:
        """The kind of the upstream's server; None until it is known."""
        return self._reading.kind if self._reading else None

    def window(self, model: str, tenant: str = "") -> StatedWindow | None:
        """The window that the server last stated for a model: as loaded, else in its list; does not ask the server."""
        stated = self._reading.of(model) if self._reading else None
        if self.lists and (stated is None or stated.is_ceiling) and (listed := self.lists.get(tenant)) is not None:
            return listed.of(model) or stated
        return stated

    async def read_list(self, tenant: str, data: bytes, headers: Headers) -> None:
        """Takes in a list of models that the server sent a tenant; `headers` have its encoding.

        One without a window, that unpacks to more than `MAX_BYTES`, or that cannot be read, says nothing. A list may
        come in pages, so the models of earlier ones stay.
        """
        found, had = await asyncio.to_thread(_listed, data, encoding_of(headers)), self.lists.get(tenant)
        if found is None:
            return
        self._list_due = self.clock() + LIST_KEPT
        if had is not None and had.kind is found.kind and len(had.windows) < MAX_LISTED:
            found = replace(found, windows={**had.windows, **found.windows})
        # Most tenants are sent the same list, which is then kept once.
        self.lists.put(tenant, next((each for each in self.lists.values() if each == found), found))

    def ask_for_list(self, tenant: str, headers: Headers) -> None:
        """Asks for the list in the background, as a caller whose credential in these headers was just accepted."""
        if self.clock() >= self._list_due:
            self._list_due = self.clock() + LIST_KEPT
            own = [pair for pair in headers if _OF_ACCOUNT(pair[0])]
            self.tasks.start(self._ask_for_list(tenant, own), ("list", self.at.base_url))

    async def _ask_for_list(self, tenant: str, headers: Headers) -> None:
        path = "/models?limit=1000" if first(headers, ANTHROPIC_VERSION[0]) else "/models"
        try:
            reply = await self.upstream.page(self.at, path, MAX_SECONDS, MAX_BYTES, headers=headers)
        except UpstreamUnavailable:
            self._list_due = self.clock() + FAILURE_KEPT
            return
        if reply.status == HTTPStatus.OK:
            await self.read_list(tenant, reply.body, [])

    def ask_if_due(self) -> None:
        """Asks the server in the background, unless it was asked lately; called when a window is wanted."""
        if self.clock() >= self._due:
            self._start()

    def ask_after_reply(self) -> None:
        """Asks a server again if it may have loaded a model for the request that is over."""
        if self.is_local:
            self._start()

    @property
    def is_local(self) -> bool:
        """Whether the upstream is known to be a local server, which answers one or a few requests at a time."""
        return self._reading is not None and self._reading.kind.is_local

    @property
    def slots(self) -> int:
        """How many requests the upstream's server answers at a time; 0 if it does not state that."""
        return (self._reading and self._reading.slots) or 0

    async def busy_slots(self) -> int | None:
        """How many of its slots work now, by llama.cpp's `/slots`; None if it does not say. Raises if it is down."""
        rows = objects_at({"slots": (await self._fetch("/slots", beside_v1=True))[1]}, "slots")
        return sum(row.get("is_processing") is True for row in rows) if rows else None

    @property
    def advice(self) -> Iterator[str]:
        """What a person should know of how the server was started, a sentence each; nothing if it does not say."""
        reading = self._reading or Reading(ServerKind.HOST)
        if self.slots == 1:
            yield "one slot: calls of the proxy's own give way to clients; if these are quick, rules condense"
        elif reading.slots:
            yield f"{reading.slots} slots: if they share one cache, what does not fit it together takes turns"
        if reading.shows_tools is False:
            yield "its chat template shows the model no tools: offer no memory tool there"

    async def asked(self, *, anew: bool = False) -> None:
        """Returns when the server has been asked, lately or `anew`.

        It returns after a moment in any case, so a server that answers late delays nothing else.
        """
        if anew:
            self._start()
        else:
            self.ask_if_due()
        await self.tasks.result_of(self._key, asyncio.get_running_loop().time() + MOMENT)

    def _start(self) -> None:
        if self.enabled:
            self.tasks.start(self.ask(), self._key)

    @property
    def _key(self) -> Hashable:
        return "discovery", self.at.base_url

    async def ask(self) -> None:
        """Asks now, for at most `MAX_SECONDS`. If the server fails, its earlier answer is kept."""
        try:
            async with asyncio.timeout(MAX_SECONDS):
                # The page on which the server stated its windows before, if there is one.
                known = await self._read_pages([self._page], self.kind) if self._page else None
                reading = known or await self._recognise()
                if reading is not None and reading.kind is ServerKind.LLAMA_CPP:
                    _, page = await self._fetch(SLOTS_PAGE, beside_v1=True)
                    reading = replace(reading, slots=slots_in(page), shows_tools=shows_tools(page))
        except (UpstreamUnavailable, TimeoutError):
            self._due = self.clock() + FAILURE_KEPT
            return
        self._due = self.clock() + (KEPT if reading else SILENCE_KEPT)
        if reading is not None:
            if reading.kind is not self.kind:
                _log.info("upstream '%s' reports its context length like %s", self.at.name, reading.kind)
            self._reading = reading.after(self._reading)

    async def _recognise(self) -> Reading | None:
        """The kind of the server by its model list, and its windows from there or from its own pages."""
        status, listed = await self._fetch("/models", beside_v1=False)
        if status in _REFUSED:
            return None
        kind = kind_of(listed)
        found = windows_in(listed) or await self._read_pages(
            (page for page in PAGES if kind in (None, page.kind)), kind
        )
        return found or (Reading(kind) if kind else None)

    async def _read_pages(self, pages: Iterable[Page], kind: ServerKind | None) -> Reading | None:
        """The first page that states a window, else the first of a server of this kind."""
        silent: Reading | None = None
        for page in pages:
            _, data = await self._fetch(page.path, beside_v1=True)
            reading = page.read(data, kind)
            if reading is not None and (silent is None or not reading.is_silent):
                self._page, silent = page, reading
            if reading is not None and not reading.is_silent:
                return reading
        return silent

    async def _fetch(self, path: str, *, beside_v1: bool) -> tuple[int, object]:
        """The status of a page and its JSON value, which is None if it could not be read."""
        reply = await self.upstream.page(self.at, path, MAX_SECONDS, MAX_BYTES, beside_v1=beside_v1)
        return reply.status, json_or_none(reply.body) if reply.status == HTTPStatus.OK else None


def _listed(data: bytes, encoding: str) -> Reading | None:
    """The windows that a list of models states, as it came in its encoding; None if it cannot be read."""
    decoder = decoder_for(encoding)
    try:
        plain = decoder.feed(data, MAX_BYTES) if decoder else b""
    except NotDecodable:
        return None
    return windows_in(json_or_none(plain)) if len(plain) <= MAX_BYTES else None
