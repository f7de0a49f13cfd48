"""Request records: what each request of a session has left, so that pages and tables need not guess.

A record is an item in the journal of its session, written together with the session, and has `SIZE` bytes:

    when the request came and its reply began, its branch, action and trigger, and the condensation in its view
    its tokens before and after, by our own count, and how that count was made
    the upstream's counts: prompt, cached and reply; and what our own calls for it took
    status, milliseconds, model, window, what it cost, and what it meant: rescued, or saved tokens

Names of branches and models are numbers in it: a branch by its place in the order of opening, a model by its place in
the session's list. The sums of all requests, stored or not, are made of the same records (`amounts`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import repeat
from typing import NamedTuple

from proxy.bodies.measure import Precision
from proxy.conversations.session import MAIN, MAX_MODELS, Session, branch_name
from proxy.conversations.totals import MILLION
from proxy.reasons import Action, Trigger
from strategies.core.economics import Prices

_FORM = struct.Struct(">QHBBBQHBI10I")
SIZE = _FORM.size  # bytes of one record
OTHER = "other"
_ACTIONS, _TRIGGERS, _PRECISIONS = list(Action), list(Trigger), list(Precision)
_MOST = (1 << 32) - 1


class RequestRecord(NamedTuple):
    """One request; its tokens before and after are by our own count, as the headers of its reply had them."""

    at: float  # when it came, in seconds since the epoch
    branch: str
    action: Action
    trigger: Trigger
    condensation: str  # the id of the condensation in its view; "" for none
    before: int  # tokens of the client's own list
    after: int  # tokens of the view; under `observe:` of the one that would have been forwarded
    precision: Precision
    status: int  # HTTP status of the reply
    milliseconds: int  # from its arrival to the end of its reply
    model: str
    window: int | None  # tokens; None if it was unknown
    prompt: int = 0  # by the upstream's count, like the next two; 0 if it reported none
    cached: int = 0
    reply: int = 0
    own: int = 0  # tokens of our own model calls for it
    reread: int = 0  # tokens that the upstream read anew because this request changed the start of its prompt
    fits: bool = True  # whether the client's own list would have fitted into the window, as far as that was known
    cost: int = 0  # of its prompt and reply, in millionths of the currency; 0 if the prices are not known
    number: int = 0  # the records of a session count from 1
    first_byte: int = 0  # milliseconds from its arrival to the first byte of its reply; 0 if that is not known

    @property
    def is_answered(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def is_rescued(self) -> bool:
        """Whether it was answered, did not fit as the client sent it, and was sent shorter."""
        return self.is_answered and not self.fits and self.forwarded < self.before

    @property
    def forwarded(self) -> int:
        """The tokens of what was forwarded: a request that is only observed goes on as it came."""
        return self.before if self.action is Action.WOULD_CONDENSE else self.after

    @property
    def ended(self) -> int:
        """When its reply ended, which is when it was counted; in milliseconds since the epoch, as it is packed."""
        return round(self.at * 1000) + self.milliseconds

    @property
    def saved(self) -> int:
        """The tokens that were saved; none where nobody could have spent them. Negative if memory added more."""
        return self.before - self.forwarded if self.is_answered and self.fits else 0

    @property
    def is_estimate(self) -> bool:
        return self.precision is Precision.ESTIMATE

    def packed(self, models: Sequence[str]) -> bytes:
        """The item of the journal, in a session with these models."""
        made = self.condensation
        counts = self.before, self.after, self.prompt, self.cached, self.reply, self.own, self.reread, self.cost
        return _FORM.pack(
            round(self.at * 1000),
            int(self.branch[1:]) if self.branch != MAIN else 1,
            _ACTIONS.index(self.action),
            _TRIGGERS.index(self.trigger),
            _PRECISIONS.index(self.precision) << 1 | self.fits,
            int(made[1:], 16) if made else 0,
            self.status,
            models.index(self.model) if self.model in models else MAX_MODELS,
            self.window or 0,
            *map(min, (*counts, self.milliseconds, self.first_byte), repeat(_MOST)),
        )


def unpacked(number: int, item: bytes, models: Sequence[str]) -> RequestRecord | None:
    """The record in an item of a journal; None if another version wrote it."""
    if len(item) != SIZE:
        return None
    at, branch, action, trigger, flags, made, status, model, window, *counts = _FORM.unpack(item)
    before, after, prompt, cached, reply, own, reread, cost, ms, first_byte = counts
    return RequestRecord(
        at / 1000,
        branch_name(branch),
        _ACTIONS[action],
        _TRIGGERS[trigger],
        f"c{made:016x}" if made else "",
        before,
        after,
        _PRECISIONS[flags >> 1],
        status,
        ms,
        models[model] if model < len(models) else OTHER,
        window or None,
        *(prompt, cached, reply, own, reread),
        bool(flags & 1),
        cost,
        number,
        first_byte,
    )


def unpacked_all(items: Iterable[tuple[int, bytes]], session: Session) -> list[RequestRecord]:
    """The records in a session's journal, oldest first."""
    records = (unpacked(number, item, session.models) for number, item in items)
    return [record for record in records if record is not None]


def in_millionths(money: float) -> int:
    return round(money * MILLION)


def amounts(record: RequestRecord, prices: Prices | None, slope: float = 1.0, written: int = 0) -> dict[str, int]:
    """What one request adds to the totals of its session and to the sums, by name; without what is 0.

    Money needs prices, the upstream's tokens for one of ours (`slope`), and those that it has `written` to its cache.
    Saved is the difference to the client's own list, all that was saved or read anew taken to be in the upstream's
    cache; so it is the least that was saved.
    """
    sent = record.before if record.action is Action.WOULD_CONDENSE else record.after
    is_answered, is_shorter = record.is_answered, sent < record.before
    saved = record.before - sent if is_answered and record.fits else 0
    found = {
        "requests": 1,
        "failed": int(record.status >= HTTPStatus.BAD_REQUEST),
        "rescued": int(is_answered and is_shorter and not record.fits),
        "unreported": int(is_answered and not record.prompt),
        "client_tokens": record.before,
        "forwarded_tokens": sent,
        "saved_tokens": saved,
        "reread_tokens": record.reread,
        "rescue_own_tokens": 0 if record.fits else record.own,
        "prompt_tokens": record.prompt,
        "cached_tokens": record.cached,
        "completion_tokens": record.reply,
        "cost": record.cost,
    }
    if prices is not None:
        prompt, more = record.prompt or sent, round(slope * saved)

        def cost(more: int, reread: int = 0) -> int:
            cached = min(record.cached + more + reread, prompt + more)
            new = min(max(written - reread, 0), prompt + more - cached)
            return in_millionths(prices.of_call(prompt=prompt + more, cached=cached, reply=record.reply, written=new))

        unbroken = cost(0, record.reread)
        found["saved_cost"] = more and cost(more, record.reread) - unbroken
        found["reread_cost"] = record.reread and cost(0) - unbroken
        found["rescue_reread_cost"] = 0 if record.fits else found["reread_cost"]
    return {name: amount for name, amount in found.items() if amount}
