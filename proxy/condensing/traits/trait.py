"""What the rows of `TRAITS` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from proxy.condensing.turn import Aside, RequestContext
from proxy.conversations.session import Session
from proxy.protocols.endpoint import Compacting

Value = TypeVar("Value")
Holder = TypeVar("Holder", Session, RequestContext)
Shape = Callable[[RequestContext, float], RequestContext]


@dataclass(frozen=True)
class Trait(Generic[Value]):
    """One row: a name and its hooks. A row without `decode` stores nothing; a value is stored as the JSON that it is.

    `shape` changes the context of a request before its tokens are calibrated, `sized` afterwards; both get the time in
    seconds since the epoch. They are called if the session has the trait, or if it `applies` to the request. `after`
    gives the value that the session has once the turn was answered, None for none. It gets the one that it had, the
    `Turn` and the time; without it, what the request has found replaces what the session had. `asides` has what
    requests may ask beside their conversation, by how their protocol says so.
    """

    name: str
    decode: Callable[[Any], Value] | None = None
    applies: Callable[[RequestContext], object] | None = None
    shape: Shape | None = None
    sized: Shape | None = None
    after: Callable[..., Value | None] | None = None
    asides: Mapping[Compacting, Aside] = field(default_factory=dict)

    def of(self, holder: Session | RequestContext) -> Value | None:
        return cast("Value | None", holder.traits.get(self.name))

    def put(self, holder: Holder, value: Value | None) -> Holder:
        others = {name: each for name, each in holder.traits.items() if name != self.name}
        return holder._replace(traits=others if value is None else {**others, self.name: value})
