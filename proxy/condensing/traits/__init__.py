"""What only some sessions have, one file and one row each.

    pins           messages that a person has pinned
    opaque_head    what stands behind a vendor's own compaction, and which of them the server can read
    pictures_out   the oldest pictures, left out of views because a request was refused for its size
    economy        the last advice where condensing is cheapest, for people to read
    rewriting      an upstream that accepts requests only as they came, for no reason that it gives
    size_refused   the size of a view that was refused, which bounds the session's views for an hour
    unproven       its owner was proved by no upstream, because it began at one that judges nobody
    failed_try     a preparation that has failed, so that no other is made too soon

A session stores the values of its traits by the names of their rows (`Session.traits`). A request has those that bear
on it, and what it has found besides (`RequestContext.traits`). The rows are asked in this order. A new trait is one
file and one row; nothing else names it but what it is there for, such as the rung that teaches it.
"""

from __future__ import annotations

from typing import Any

from proxy.condensing.traits import (
    economy,
    failed_try,
    opaque_head,
    pictures_out,
    pins,
    rewriting,
    size_refused,
    unproven,
)
from proxy.condensing.traits.trait import Trait

TRAITS: tuple[Trait[Any], ...] = (
    pins.TRAIT,
    opaque_head.TRAIT,
    pictures_out.TRAIT,
    economy.TRAIT,
    rewriting.TRAIT,
    size_refused.TRAIT,
    unproven.TRAIT,
    failed_try.TRAIT,
)
DECODERS = {trait.name: trait.decode for trait in TRAITS if trait.decode is not None}
"""What reads the stored form of a value, by the trait's name."""
