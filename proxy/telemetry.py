"""Telemetry: the Prometheus metrics, and the sums that pages and receipts are made of.

Metrics carry only counts and names, never content and never a credential. A request is counted once, when it has ended,
from the line that the log and the sums have of it, so that these agree. The parts of the proxy report any other event
by calling `Telemetry.count`, or a `record_…` method if more than one number changes.
"""

from __future__ import annotations

import asyncio
import os
import re
from bisect import bisect_left
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from http import HTTPStatus
from platform import python_version
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from proxy import VERSION
from proxy.asking import FinishedCall
from proxy.asking.dispatch import CANCELLED
from proxy.condensing.policy import Policy
from proxy.condensing.turn import Decision
from proxy.conversations.noted import NOTED, NotedRequest, noted_in
from proxy.conversations.requests import in_millionths
from proxy.conversations.stored import StoredSessions
from proxy.conversations.totals import MILLION
from proxy.errors import CLIENT_CLOSED_REQUEST
from proxy.quoting import label
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers.figures import Figures
from proxy.servers.windows import Window
from proxy.settings.tables import BUNDLED_CURRENCY
from proxy.store.base import RING, StoreError, StoreKey
from strategies.core.economics import Advice, Prices
from strategies.core.effects import Votes

if TYPE_CHECKING:
    from proxy.log import RequestLine

MAX_MODELS = 256  # maximum number of models with a label of their own
MOST_TIMES = 1_000  # of one kind of requests that wait to be added to a metric
MAX_KINDS = 500  # maximum number of combinations of labels that clients choose
_MAX_SOURCES = 16
OTHER = "other"


class Times(Histogram):
    """A histogram of seconds, to which those of many are added at once: each alone takes a lock, twice."""

    def add(self, seconds: list[float]) -> None:
        """Adds what is in the list, and empties it."""
        self._sum.inc(sum(seconds))
        for bucket, number in Tally(bisect_left(self._upper_bounds, each) for each in seconds).items():
            self._buckets[bucket].inc(number)
        seconds.clear()


_FAST = partial(Times, buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10))
_SLOW = partial(Times, buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600))
_SUM = partial(Gauge, multiprocess_mode="livesum")
_SPENT = ("model", "tenant")
METRICS: Mapping[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "build_info": (partial(Gauge, multiprocess_mode="livemax"), "The version that runs.", ("version", "python")),
    "requests_total": (
        Counter,
        "Requests that ask a model, by what was done with them.",
        ("protocol", "model", "tenant", "strategy", "action"),
    ),
    "reasons_total": (Counter, "Requests by the reason that was given.", ("reason",)),
    "condensations_total": (Counter, "New condensations by trigger.", ("trigger",)),
    "replies_total": (Counter, "Replies by status, ours and the upstream's.", ("by", "protocol", "upstream", "status")),
    "errors_total": (Counter, "Replies that are, or end with, errors of our own, by their code.", ("error",)),
    "broken_total": (Counter, "Replies that did not reach their end.", ("upstream",)),
    "request_seconds": (_SLOW, "Time from the head of a request to the end of its reply.", ("upstream", "model")),
    "first_byte_seconds": (_SLOW, "Time to the first byte of a reply's body.", ("upstream", "model")),
    "overhead_seconds": (_FAST, "Time added before a request was forwarded.", ("strategy",)),
    "tokens_total": (Counter, "Prompt tokens by our own count, as they came and as forwarded.", (*_SPENT, "stage")),
    "usage_tokens_total": (Counter, "Tokens as upstreams have counted them.", (*_SPENT, "kind")),
    "rescued_total": (Counter, "Requests that fitted only because they were condensed.", _SPENT),
    "saved_tokens_total": (Counter, "Tokens saved on requests that would have fitted anyway.", _SPENT),
    "added_tokens_total": (Counter, "Tokens added to requests that would have fitted anyway.", _SPENT),
    "reread_tokens_total": (Counter, "Tokens read anew because the start of a prompt changed.", _SPENT),
    "cost_total": (Counter, "What prompts and replies cost.", (*_SPENT, "currency")),
    "saved_cost_total": (Counter, "What the saved tokens would have cost at least.", (*_SPENT, "currency")),
    "added_cost_total": (Counter, "What the added tokens cost at least.", (*_SPENT, "currency")),
    "reread_cost_total": (Counter, "What the tokens that were read anew cost more.", (*_SPENT, "currency")),
    "calls_total": (Counter, "Model calls of our own by how they ended.", ("role", "outcome")),
    "call_seconds": (_SLOW, "Time of our own model calls.", ("role",)),
    "call_tokens_total": (Counter, "All tokens of our own model calls.", ("role",)),
    "call_cost_total": (Counter, "What our own model calls cost.", ("role", "currency")),
    "votes_total": (Counter, "Votes of judges by what they say.", ("vote",)),
    "overflows_total": (Counter, "Prompts that an upstream refused, by what followed.", ("outcome",)),
    "refusals_total": (Counter, "Requests that were refused, by what ran out.", ("reason",)),
    "store_seconds": (_FAST, "Time of the store's operations.", ("operation",)),
    "store_failed_writes_total": (Counter, "Writes that the store failed.", ("reason",)),
    "store_writable": (partial(Gauge, multiprocess_mode="livemin"), "Whether the last write to the store worked.", ()),
    "calibration_error": (
        partial(Gauge, multiprocess_mode="livemostrecent"),
        "Mean relative error of the estimated prompt tokens, of requests without and with an anchor.",
        ("model", "kind"),
    ),
    "in_flight": (_SUM, "Requests under way.", ()),
    "queue": (_SUM, "Requests that wait to be served.", ()),
    "loop_failures_total": (Counter, "Steps of loops in the background that failed.", ("loop",)),
    "background_tasks": (_SUM, "Pieces of work in the background.", ()),
}
"""Each metric, by its name without `condenser_`: its kind, what it counts, its labels."""
AMOUNTS: Mapping[str, tuple[str, ...]] = {
    "client_tokens": ("tokens_total", "before"),
    "forwarded_tokens": ("tokens_total", "after"),
    "prompt_tokens": ("usage_tokens_total", "prompt"),
    "cached_tokens": ("usage_tokens_total", "cached"),
    "completion_tokens": ("usage_tokens_total", "reply"),
    "rescued": ("rescued_total",),
    "saved_tokens": ("saved_tokens_total",),
    "added_tokens": ("added_tokens_total",),
    "reread_tokens": ("reread_tokens_total",),
    "cost": ("cost_total",),
    "saved_cost": ("saved_cost_total",),
    "added_cost": ("added_cost_total",),
    "reread_cost": ("reread_cost_total",),
}
"""The metrics of a request's amounts (`RequestLine.amounts`), each with its last label."""


class ArrivalKind(NamedTuple):
    """Requests that are alike: `strategy` is the text of a pipeline, `upstream` an address."""

    protocol: str
    model: str
    upstream: str
    window: Window
    strategy: str


@dataclass(slots=True)
class Arrivals:
    """The requests of one kind, with the policy and the advice of the newest one."""

    policy: Policy
    advice: Advice | None = None
    actions: Tally[str] = field(default_factory=Tally)
    fullest: int = 0  # tokens of the largest view
    sources: set[str] = field(default_factory=set)  # the headers and members that named their sessions


class Telemetry:
    """The metrics of one app, with a registry of their own.

    If there are several workers, the client library keeps all values in a directory that they share, and each of them
    shows those of all (`SHARED`). `names` are those of tenants, whenever one is asked for; money is in `currency`.
    """

    def __init__(self, names: Container[str] = (), currency: str = BUNDLED_CURRENCY) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        metrics = {
            name: kind(f"condenser_{name}", text, labels, registry=self.registry)
            for name, (kind, text, labels) in METRICS.items()
        }
        # Cached, because every request counts: looking up a labelled counter takes longer than incrementing it.
        self.metric = cache(lambda name, *labels: metrics[name].labels(*labels) if labels else metrics[name])
        """A metric, by its name and the values of its labels."""
        self._names, self._currency = names, currency
        self._models: set[str] = set()
        self._kinds: set[tuple[str, str, str]] = set()
        self._waiting: defaultdict[tuple[str, str, str, str], Tally[str]] = defaultdict(Tally)
        self._replies: Tally[tuple[str, ...]] = Tally()
        self._seconds: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        """What waits to be added to a metric until that is read, by its name and its labels."""
        self.arrived: dict[ArrivalKind, Arrivals] = {}
        """What this process was asked for since it started, by kind; at most `MAX_MODELS` kinds."""
        self._gauges: dict[str, Callable[[], float]] = {}
        self.metric("store_writable").set(1)
        self.metric("build_info", VERSION, python_version()).set(1)
        if SHARED not in os.environ:
            ProcessCollector(registry=self.registry)

    def count(self, name: str, *labels: str) -> None:
        self.metric(name, *labels).inc()

    def show(self, name: str, value: Callable[[], float]) -> None:
        """Shows in the gauge of that name what `value` returns when it is read."""
        self._gauges[name] = value
        self.metric(name).set_function(value)

    async def share(self) -> None:
        """Writes what waits, and the gauges, to where they are read, by other workers too."""
        self._count_waiting()
        for name, value in self._gauges.items():
            self.metric(name).set(value())

    def record_calibration(self, model: str, figures: Figures) -> None:
        for kind, error in (("first", figures.first_error), ("anchored", figures.later_error)):
            if error is not None:
                self.metric("calibration_error", self._label(model), kind).set(error)

    def _label(self, model: str) -> str:
        """The label of a model: its name if that is short and plain and one of the first `MAX_MODELS`, else `OTHER`.

        Clients choose the names of models, and `/metrics` shows them to everyone who can read it.
        """
        if model in self._models:
            return model
        if len(self._models) == MAX_MODELS or label(model) != model:
            return OTHER
        self._models.add(model)
        return model

    def record_call(self, call: FinishedCall, cost: int) -> None:
        """Records a call of our own, which has cost so many millionths."""
        self.count("calls_total", call.role, call.failure or "answered")
        self.metric("call_seconds", call.role).observe(call.seconds)
        self.metric("call_tokens_total", call.role).inc(call.tokens)
        if cost:
            self.metric("call_cost_total", call.role, self._currency).inc(cost / MILLION)

    def record_votes(self, votes: Votes) -> None:
        for vote in votes.votes:
            self.count("votes_total", "none" if vote.yes is None else "yes" if vote.yes else "no")

    def store_timer(self, operation: str) -> Callable[[float], None]:
        """What takes the seconds of each such operation of the store."""
        return self._seconds["store_seconds", operation].append

    def record(self, line: RequestLine, amounts: Mapping[str, int]) -> None:
        """Records a request that has ended; `amounts` are what it adds to the sums, nothing if it asks no model."""
        status, by = str(line.status or CLIENT_CLOSED_REQUEST), "upstream" if line.is_relayed else "condenser"
        protocol = line.protocol
        self._replies[by, protocol, line.upstream, status] += 1
        if line.error:
            self.metric("errors_total", line.error).inc()
        if not line.is_complete and line.status is not None:
            self.metric("broken_total", line.upstream).inc()
        if not amounts.get("requests"):
            return
        tenant, strategy = line.tenant if line.tenant in self._names else OTHER, "none"
        if line.turn is not None:
            self._note_arrival(line.turn.sent.decision)
            strategy = line.turn.sent.decision.context.policy.pipeline.text
        model, tenant, strategy = self._bounded(self.model_of(line), tenant, strategy)
        self._record_times(line, model, strategy)
        grown = _grown(amounts) if amounts.get("saved_tokens", 0) < 0 else amounts
        # Counters are incremented when they are read: a dozen for each request would take longer than the rest of this.
        waiting = self._waiting[protocol, model, tenant, strategy]
        for name, amount in grown.items():
            waiting[name] += amount

    def _record_times(self, line: RequestLine, model: str, strategy: str) -> None:
        times = self._seconds["request_seconds", line.upstream, model]
        times.append(line.seconds)
        if line.turn is not None:
            self._seconds["overhead_seconds", strategy].append(line.turn.timing.ours / 1000)
        if line.first_byte is not None:
            self._seconds["first_byte_seconds", line.upstream, model].append(line.first_byte)
        if len(times) >= MOST_TIMES:
            self._count_waiting()

    def _count_waiting(self) -> None:
        for labels, number in self._replies.items():
            self.metric("replies_total", *labels).inc(number)
        self._replies.clear()
        for (name, *of), seconds in self._seconds.items():
            self.metric(name, *of).add(seconds)
        waiting, self._waiting = self._waiting, defaultdict(Tally)
        for labels, amounts in waiting.items():
            for name, amount in amounts.items():
                kind, _, value = name.partition("_")
                match kind:
                    case "action":
                        self.metric("requests_total", *labels, value).inc(amount)
                    case "reason":
                        self.metric("reasons_total", value).inc(amount)
                    case "trigger":
                        self.metric("condensations_total", value).inc(amount)
                    case _:
                        self._count_amount(name, amount, *labels[1:3])

    def _count_amount(self, name: str, amount: int, model: str, tenant: str) -> None:
        if name not in AMOUNTS:
            return
        metric, *last = AMOUNTS[name]
        if name.endswith("cost"):
            self.metric(metric, model, tenant, self._currency).inc(amount / MILLION)
        else:
            self.metric(metric, model, tenant, *last).inc(amount)

    def model_of(self, line: RequestLine) -> str:
        """The label of the model that a request asks; one that was never answered has none of its own."""
        model = line.model or OTHER
        is_answered = line.status is not None and line.status < HTTPStatus.BAD_REQUEST
        return self._label(model) if is_answered else model if model in self._models else OTHER

    def _bounded(self, model: str, tenant: str, strategy: str) -> tuple[str, str, str]:
        """These labels; `OTHER` for those that clients choose if there are too many combinations already."""
        labels = model, tenant, strategy
        if labels not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                return OTHER, tenant, OTHER
            self._kinds.add(labels)
        return labels

    def _note_arrival(self, decision: Decision) -> None:
        request, policy = decision.context.request, decision.context.policy
        protocol, upstream = request.body.endpoint.dialect.name, request.upstream.base_url
        kind = ArrivalKind(protocol, request.model, upstream, policy.window, policy.pipeline.text)
        found = self.arrived.get(kind)
        if found is None:
            if len(self.arrived) == MAX_MODELS:
                return
            found = self.arrived[kind] = Arrivals(policy)
        found.policy, found.advice = policy, decision.context.advice
        found.actions[decision.action] += 1
        found.fullest = max(found.fullest, decision.tokens_after)
        if len(found.sources) < _MAX_SOURCES:
            found.sources.add(decision.context.recognised.identity.source)

    def record_overflow(self, outcome: str) -> None:
        """Records that the upstream refused a prompt for its length."""
        self.count("overflows_total", outcome)

    def record_write(self, failure: str) -> None:
        """Records that a write to the store has failed, by its reason, or that one succeeded again: ""."""
        self.metric("store_writable").set(not failure)
        if failure:
            self.count("store_failed_writes_total", failure)

    def exposition(self) -> bytes:
        self._count_waiting()
        return generate_latest(_of_all_workers() if SHARED in os.environ else self.registry)


def _grown(amounts: Mapping[str, int]) -> Mapping[str, int]:
    """The amounts with what was added by a name of its own, because counters only grow."""
    added = {"added_tokens": -amounts["saved_tokens"], "added_cost": -amounts.get("saved_cost", 0)}
    return {**amounts, **added, "saved_tokens": 0, "saved_cost": 0}


SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable by which the client library knows the directory that workers share."""
_LIVE = re.compile(r"gauge_livesum_([0-9]+)\.db")


def forget_worker(pid: int) -> None:
    """Takes what only a living worker can say out of the metrics; what it has counted stays."""
    mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _of_all_workers() -> CollectorRegistry:
    """The metrics of all workers together, and the figures of each process that lives."""
    registry = CollectorRegistry()
    _Workers(registry)  # type: ignore[no-untyped-call]
    registry.register(_Processes())
    return registry


class _Workers(MultiProcessCollector):
    def collect(self) -> Iterable[Metric]:
        """The metrics in the workers' files. The library cannot read the empty file of a worker that is starting."""
        files = []
        for entry in os.scandir(os.environ[SHARED]):
            with suppress(FileNotFoundError):  # of a worker that has ended
                if entry.name.endswith(".db") and entry.stat().st_size:
                    files.append(entry.path)
        metrics: Iterable[Metric] = self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
        return metrics


class _Processes(Collector):
    """The process figures of all workers, by their `pid`."""

    def collect(self) -> Iterator[Metric]:
        found = map(_LIVE.fullmatch, os.listdir(os.environ[SHARED]))
        families: dict[str, Metric] = {}
        for pid in sorted(each[1] for each in found if each):
            for family in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                kept.samples += [sample._replace(labels={"pid": pid}) for sample in family.samples]
        yield from families.values()


# -- sums ----------------------------------------------------------------------------------------------------------

SLOT = 300  # seconds that one sum is over
KEPT = 8 * 24 * 3600  # seconds
MAX_USED = 100
_HOUR = 3600
_PAUSE = 1.0  # seconds between a request and the write of its sums, which are those of many then


class Sums:
    """What all requests have amounted to, stored or not, by the time at which they ended.

    Each replica adds to the sums in the store, and has its own since it started (`total`). `prices` are those of a
    model, None if they are not known; `clock` gives seconds since the epoch. What the store does not take is kept
    until it does; a slot whose sum is no sum in the store is dropped, because it would fail for ever. What some of
    these figures count is noted in rings (`proxy/conversations/requests.py`).
    """

    def __init__(
        self,
        stored: StoredSessions,
        tasks: OwnedTasks,
        clock: Callable[[], float],
        prices: Callable[[str], Prices | None],
    ) -> None:
        self._stored, self._tasks, self._clock, self._prices = stored, tasks, clock, prices
        self.started = clock()
        self.total: Tally[str] = Tally()
        self.noted: dict[str, list[NotedRequest]] = {name: [] for name in NOTED}  # what waits for its ring
        self.used: dict[StoreKey, None] = {}  # the sessions that this replica has served, at most `MAX_USED`
        self._waiting: defaultdict[int, Tally[str]] = defaultdict(Tally)
        self._timer: asyncio.TimerHandle | None = None

    def note_call(self, call: FinishedCall) -> int:
        """Adds a call of our own, and returns its cost in millionths.

        That is the cost of a prompt, because it is not known how much was its answer.
        """
        prices = self._prices(call.model)
        cost = in_millionths(prices.of_call(prompt=call.tokens)) if prices else 0
        has_failed = call.failure not in ("", CANCELLED)
        self.note({"own_calls": 1, "own_failed": int(has_failed), "own_tokens": call.tokens, "own_cost": cost})
        return cost

    def note(self, found: Mapping[str, int]) -> None:
        """Adds what has just ended; nothing if that is empty."""
        if not found:
            return
        waiting = self._waiting[int(self._clock() // SLOT)]
        for name, amount in found.items():
            self.total[name] += amount
            waiting[name] += amount
        if self._timer is None:
            # A timer, not a task that sleeps: the app is idle meanwhile.
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._write_in_background)

    def _write_in_background(self) -> None:
        self._tasks.own(self.write(), to_its_end=True)

    async def write(self) -> None:
        """Writes what waits; a failure is logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, defaultdict(Tally)
        for slot, found in waiting.items():
            hour, place = divmod(slot * SLOT, _HOUR)
            named = {f"{place // SLOT}:{name}": amount for name, amount in found.items() if amount}
            try:
                await self._stored.in_time(self._stored.store.add(_sum_of(hour), named, KEPT))
            except StoreError as error:
                is_lost = error.reason == "store-corrupt"
                self._stored.outage.failed("sums were dropped" if is_lost else "sums were not written", error)
                if slot * SLOT > self._clock() - KEPT and not is_lost:
                    self._waiting[slot].update(found)

        for ring in NOTED:
            noted, self.noted[ring] = self.noted[ring], []
            try:
                if noted:
                    items = [each.encoded() for each in noted]
                    await self._stored.in_time(self._stored.store.push(_ring_of(ring), items, KEPT))
            except StoreError as error:
                self._stored.outage.failed("requests were not noted", error)
                self.noted[ring] = [*noted, *self.noted[ring]][-RING:]

    async def noted_in(self, ring: str, since: float, most: int = RING) -> list[NotedRequest]:
        """The newest requests of a ring that have ended since then, newest first; raises `StoreError`."""
        await self.write()
        items = await self._stored.in_time(self._stored.store.ring(_ring_of(ring)))
        found = [each for each in noted_in(items[-most:]) if each.record.ended >= since * 1000]
        return sorted(found, key=lambda each: -each.record.at)

    async def since(self, seconds: int) -> list[tuple[int, Tally[str]]]:
        """For each slot of the last `seconds` that has requests: when it began, and its sums. Raises `StoreError`."""
        await self.write()
        now = self._clock()
        first = int((now - min(seconds, KEPT)) // SLOT)
        hours = range(first * SLOT // _HOUR, int(now // _HOUR) + 1)
        slots: dict[int, Tally[str]] = {}
        for hour, found in zip(
            hours, await self._stored.in_time(self._stored.store.sums(list(map(_sum_of, hours)))), strict=True
        ):
            for named, amount in found.items():
                place, _, name = named.partition(":")
                slot = hour * _HOUR // SLOT + int(place) if place.isdecimal() else 0  # else not of this version
                if slot >= first:
                    slots.setdefault(slot, Tally())[name] += amount
        return [(slot * SLOT, slots[slot]) for slot in sorted(slots)]


def _ring_of(name: str) -> str:
    return f"requests-{name}"


def _sum_of(hour: int) -> str:
    return f"hour-{hour}"
