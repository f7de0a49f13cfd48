"""A client's own compaction: a request for one stands beside its conversation, and the answer is known again.

`strategies/core/client_compaction.py` says how. What was compacted is kept in the session itself, because that is
recognised by it (`Session.compactions`).
"""

from __future__ import annotations

from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import Aside
from proxy.conversations.session import Session
from proxy.protocols.endpoint import Compacting
from proxy.reasons import Reason
from strategies.core.client_compaction import marks_of

BY = {
    how: Aside(Reason.CLIENT_COMPACTION, how is Compacting.PROMPT, marks_of, Session.with_compaction)
    for how in Compacting
}
TRAIT = Trait[None]("client_compaction", asides=BY)
