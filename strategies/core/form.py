"""Forms: what message lists an upstream accepts, and how a view is written so that it is accepted.

Servers differ. Chat templates insist that user and assistant alternate, schemas refuse a name or an empty content in
an assistant message, some servers want every system message first. Only what we changed is adapted: messages that we
insert or rewrite, and the seams at which messages meet that were not neighbours in the transcript. Where two messages
of one role meet at such a seam they are merged, even a client's message, since no alternating server accepts both. All
else keeps its bytes, and a list that the client itself has broken stays broken. The result depends on view and form
only, and a view that grows at its end gives a list that grows at its end.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Form:
    """What message lists an upstream accepts."""

    alternate_roles: bool = False
    """Whether user and assistant messages must alternate."""
    assistant_name: bool = True
    """Whether an assistant message may have a name."""
    empty_assistant: bool = True
    """Whether an assistant message may have an empty content."""
    middle_system: bool = True
    """Whether a system message may follow other messages."""

    @property
    def systems_lead(self) -> bool:
        """Whether system messages inside the covered span go to the front: an alternating list has no other place."""
        return self.alternate_roles or not self.middle_system


# -- alternation ---------------------------------------------------------------------------------------------------
