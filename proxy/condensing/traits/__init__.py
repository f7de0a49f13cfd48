"""What only some sessions have, one file and one row each.

    form               the form of views that the server accepts
    pins               messages that a person has pinned, or that last by their kind
    json_word          the word that a server demands before it writes a JSON object: a message with it stays
    opaque_head        what stands behind a vendor's own compaction, and which of them the server can read
    client_compaction  a request for a compaction of the client's own, and by what the answer is known again
    left_out           pictures, documents and the middle of strings that a server has refused for their size
    economy            the last advice where condensing is cheapest, for people to read
    rewriting          an upstream that accepts requests only as they came, for no reason that it gives
    size_refused       the size of a view that was refused, which bounds the session's views for an hour
    unproven           its owner was proved by no upstream, because it began at one that judges nobody
    failed_try         a preparation that has failed, so that no other is made too soon

A session stores the values of its traits by the names of their rows (`Session.traits`). A request has those that bear
on it, and what it has found besides (`RequestContext.traits`). The rows are asked in this order. A new trait is one
file and one row; nothing else names it but what it is there for, such as the rung that teaches it.
"""

from __future__ import annotations

from typing import Any

from proxy.condensing.traits import (
    client_compaction,
    economy,
    failed_try,
    form,
    json_word,
    left_out,
    opaque_head,
    pins,
    rewriting,
    size_refused,
    unproven,
)
from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import Aside
from proxy.protocols.endpoint import Compacting

TRAITS: tuple[Trait[Any], ...] = (
    form.TRAIT,
    pins.TRAIT,
    json_word.TRAIT,
    opaque_head.TRAIT,
    client_compaction.TRAIT,
    left_out.TRAIT,
    economy.TRAIT,
    rewriting.TRAIT,
    size_refused.TRAIT,
    unproven.TRAIT,
    failed_try.TRAIT,
)
DECODERS = {trait.name: trait.decode for trait in TRAITS if trait.decode is not None}
"""What reads the stored form of a value, by the trait's name."""
ASIDES: dict[Compacting | None, Aside] = {how: aside for trait in TRAITS for how, aside in trait.asides.items()}
"""What a request may ask beside its conversation, by how its protocol says so."""
