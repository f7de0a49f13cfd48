"""What is known of the server and the model of a request, and the one place that learns.

Before a request, `known` reads the lessons of other processes, now and then and in the background. Only the first
request for a model waits for them, and not for long: all are read at once, within the request's patience with the
store. A request that is `off` does not wait at all. After a reply, its usage teaches how the server counts; a refusal
teaches a window, a size or a form.

A form that a server names in a refusal holds for later requests to that model as long as this process runs, once the
request was accepted in it: the words of an error are no proof. A refusal names only forms that were not known, so a
request is sent again at most as often as there is something to learn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import MAX_SCOPES, LessonScope
from proxy.servers.counting import Anchor, Calibration, Calibrator, CountedPrompt
from proxy.servers.discovery import Discovered
from proxy.servers.figures import Figures
from proxy.servers.shared_cache import SharedCache
from proxy.servers.windows import (
    REQUEST,
    SETTINGS,
    UNKNOWN,
    LearnedWindow,
    LearnedWindows,
    SizeRefused,
    Window,
)
from proxy.settings import Settings
from proxy.settings.profile import ANY, Profile, Restriction
from proxy.settings.tables import SummarizerRole
from proxy.store.access import Facts, Patience
from proxy.tokens.counter import Counter
from proxy.tokens.models import ModelTable, StatedWindow, asks_for_long
from strategies.core.view import View

FIRST_LOOK = 0.25  # seconds
_MAX_CACHED = 256
_log = logging.getLogger(__name__)


class Server(NamedTuple):
    """What is known of the server and the model that a request asks, before it is decided on."""

    scope: LessonScope
    counter: Counter
    window: Window = Window(None, UNKNOWN)
    prompt_window: int | None = None
    """The window in tokens of the summarizer's model; None if the request's own model summarizes."""
    profile: Profile = ANY  # the form of requests that it accepts
    hidden: int = 0  # the tokens that it adds to a prompt by itself
    size_refused: SizeRefused | None = None  # the size that bounds the session of the request
    pays_list_prices: bool = False  # whether each token of the request costs what the model's vendor says
    listed: Window = Window(None, UNKNOWN)  # the bundled table's, whatever was set


class ModelWindows(NamedTuple):
    """The windows of one model that are known without asking its server."""

    chosen: Window | None  # the one that the settings give
    listed: Window  # the one in the bundled table, for a model whose window is neither set nor stated
    long: Window  # the one for a request that asks for a million tokens; the same if the model has no such window
    max_input: int | None
    is_long: bool  # whether the model's name asks for a million tokens

    @classmethod
    def of(cls, settings: Settings, table: ModelTable, model: str) -> ModelWindows:
        entry, found, tokens = settings.for_model(model), table.find(model), settings.own("window", model=model)
        limit = entry.max_input if entry else None
        source = f"{SETTINGS} for '{entry.match}'" if entry and entry.window else SETTINGS
        listed = Window(found.window, table.source, limit or found.max_input) if found else Window(None, UNKNOWN)
        long = listed._replace(tokens=found.long) if found and found.long else listed
        return cls(Window(tokens, source, limit) if tokens else None, listed, long, limit, asks_for_long(model))

    def window(
        self,
        requested: int | None,
        stated: StatedWindow | None = None,
        learned: LearnedWindow | None = None,
        *,
        is_long: bool = False,
    ) -> Window:
        """The window that holds, given what the server has `stated` and what a refusal has taught."""
        is_set = Window(requested, REQUEST) if requested is not None else self.chosen
        if is_set is not None:
            return is_set
        asks_more = is_long or self.is_long
        known = listed = self.long if asks_more else self.listed
        if stated is not None and stated.is_ceiling and (listed.tokens or stated.window) >= stated.window:
            limit = self.max_input or stated.max_input or listed.max_input
            known = Window(stated.window, stated.source, limit)
        elif stated is not None and not stated.is_ceiling and not (asks_more and stated.window == self.listed.tokens):
            # A server states the window that a request has which does not ask for more.
            known = Window(stated.window, stated.source, self.max_input or stated.max_input)
        return known if learned is None else known.lowered(learned.tokens)


@dataclass(slots=True, eq=False)
class Profiles:
    """The forms that servers accept: those of the settings (`set_for`), and on top of them what was learned."""

    set_for: Callable[[str], Profile] = lambda _: ANY
    learned: Lru[LessonScope, Profile] = field(default_factory=lambda: Lru(MAX_SCOPES), init=False)

    def for_model(self, scope: LessonScope) -> Profile:
        """The profile of a model's server, as far as it is known in a scope."""
        return self.learned.get(scope) or self.set_for(scope.model)

    def learn(self, scope: LessonScope, restrictions: Iterable[Restriction]) -> None:
        """Learns the restrictions that a request was accepted under."""
        before = taught = self.for_model(scope)
        for restriction in restrictions:
            taught = taught.under(restriction)
        if taught != before:
            self.learned.put(scope, taught)
            _log.info("the upstream wants requests for %s in another form; from now on: %r", scope.named, taught)


class Servers:
    """What is known of all servers; one per app.

    `discovered` has the servers of the upstreams by their addresses, `clock` gives seconds since the epoch. `report` is
    called with a model and its figures when these change.
    """

    def __init__(
        self,
        settings: Settings,
        table: ModelTable,
        discovered: Mapping[str, Discovered],
        facts: Facts,
        tasks: OwnedTasks,
        clock: Callable[[], float],
        report: Callable[[str, Figures], None],
    ) -> None:
        self._tasks = tasks
        self.clock = clock
        self.discovered = discovered
        ask_anew = partial(self.asked, anew=True)
        self.learned = LearnedWindows(facts, tasks, settings.upstream.learned_ttl, clock, self.stated, ask_anew)
        self.calibrator = Calibrator(facts, tasks, ttl=settings.store.ttl, clock=clock, report=report)
        self.pools: Lru[LessonScope, SharedCache] = Lru(MAX_SCOPES)
        self.quiet: Lru[LessonScope, bool] = Lru(MAX_SCOPES)
        """Those whose streams have shown that they have no usage unless a request asks for it."""
        self.renew(settings, table)

    def renew(self, settings: Settings, table: ModelTable) -> None:
        """Begins anew with other settings and windows; forms are learned again, on top of what they say."""
        self.profiles = Profiles(lru_cache(_MAX_CACHED)(partial(settings.own, "profile")))
        self._windows = lru_cache(_MAX_CACHED)(partial(ModelWindows.of, settings, table))
        self._summarizer = lru_cache(_MAX_CACHED)(partial(settings.role, "summarizer"))

    async def known(
        self,
        scope: LessonScope,
        counter: Counter,
        requested: int | None,
        patience: Patience | None,
        *,
        is_long: bool,
        pays: bool,
    ) -> Server:
        """What is known of a request's server and model; only the first request for a model waits for the store.

        Without `patience` it does not. The request may ask for a window, or for one of a million tokens (`is_long`),
        and pay the prices of its vendor (`pays`).
        """
        first_reads = [*self.learned.refresh(scope), *self.calibrator.refresh(scope, counter.cache_key)]
        if first_reads and patience is not None:
            clock = asyncio.get_running_loop().time
            began = clock()
            for key in first_reads:
                await self._tasks.result_of(key, began + min(FIRST_LOOK, patience.remaining))
            patience.spend(clock() - began)
        return self.at_hand(scope, counter, requested, is_long=is_long, pays=pays)

    def at_hand(
        self,
        scope: LessonScope,
        counter: Counter,
        requested: int | None = None,
        *,
        is_long: bool = False,
        pays: bool = False,
    ) -> Server:
        """What this process knows by now."""
        window, prompt_window = self.window(scope, requested, is_long=is_long), self._prompt_window(scope)
        hidden = self.calibrator.hidden(scope, counter.cache_key)
        profile = self.profiles.for_model(scope)
        windows = self._windows(scope.model)
        listed = windows.long if is_long or windows.is_long else windows.listed
        return Server(scope, counter, window, prompt_window, profile, hidden, pays_list_prices=pays, listed=listed)

    def window(self, scope: LessonScope, requested: int | None = None, *, is_long: bool = False) -> Window:
        """A model's window: the one that is set, else the known one or the one that a refusal stated, if smaller."""
        windows = self._windows(scope.model)
        if requested is not None or windows.chosen is not None:
            return windows.window(requested)
        return windows.window(None, self.stated(scope), self.learned.window(scope), is_long=is_long)

    def _prompt_window(self, scope: LessonScope) -> int | None:
        summarizer: SummarizerRole = self._summarizer(scope.model)
        if summarizer.window is not None or summarizer.model is None:
            return summarizer.window
        place = scope.upstream if summarizer.base_url is None else summarizer.base_url
        return self.window(scope._replace(model=summarizer.model, upstream=place)).tokens

    def stated(self, scope: LessonScope) -> StatedWindow | None:
        """The window that a server last stated for a model."""
        server = self.discovered.get(scope.upstream)
        return server.window(scope.model, scope.tenant) if server is not None else None

    async def asked(self, scope: LessonScope, *, anew: bool = False) -> None:
        """Returns when the server of a scope has been asked what it is, lately or `anew`."""
        if (server := self.discovered.get(scope.upstream)) is not None:
            await server.asked(anew=anew)

    def shared_cache(self, scope: LessonScope, *, is_shown: bool = False) -> SharedCache | None:
        """The cache that requests to a model may share, as its server has several slots or an error has shown it."""
        server, stated = self.discovered.get(scope.upstream), self.stated(scope)
        if server is None or stated is None:
            return None
        has_slots = server.slots > 1
        key = LessonScope("" if has_slots else scope.model, upstream=scope.upstream)  # one model, under any name
        if (cache := self.pools.get(key)) is None and (has_slots or is_shown):
            cache = self.pools.put(key, SharedCache(server.busy_slots, self._tasks))
        if cache is not None:
            cache.size, cache.is_shown = stated.window, cache.is_shown or is_shown
        return cache

    def learn_usage(
        self, prompt: CountedPrompt, calibrated: Calibration, view: View, applied: str, counted: int, *, shares: bool
    ) -> Anchor | None:
        """Learns from the server's count of an answered view; gives the anchor for the next request of its branch."""
        self.learned.accepted(prompt.scope, counted, shares=shares)
        return self.calibrator.learn(prompt, calibrated, view, applied, counted) if shares else None
