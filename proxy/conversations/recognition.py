"""Finds the session of a request: by an explicit id, or by the chain of its messages.

The id comes from the first of several sources that has one: the proxy's own header, other session headers, then members
of the body. It is valid only inside its tenant, and only names a tree of histories. The chain of digests decides which
records apply, never the id alone.

Without an id, the chain index is asked for the longest known prefix of the transcript. The index is only a hint, so a
session that it names is read and verified before it is continued. A derived session never holds two conversations: a
transcript that forks from it gets a new id and a link to its parent, whose condensations it may read.

If the store fails, `Recognised.failure` says so, and the request continues as if nothing were stored.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from proxy.callers.tenants import ALWAYS, UNPROVEN, Trust
from proxy.conversations.cards import SHOWN, SOURCE, scope_key
from proxy.conversations.drops import dropped_from_ancestors
from proxy.conversations.session import (
    CHAT,
    DERIVED,
    OWN_HEADER,
    Branch,
    Pin,
    Session,
    newest_turn,
    openings,
    printable_id,
    session_key,
)
from proxy.conversations.stored import SessionLookup, StoredSessions
from proxy.errors import BadRequest
from proxy.http.headers import Headers, lowered_names
from proxy.protocols.endpoint import Endpoint, SessionHint, Values
from proxy.quoting import label
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import next_step
from proxy.store.access import Patience
from proxy.store.base import StoreError, StoreKey
from strategies.core.client_compaction import candidates
from strategies.core.condensation import Condensation
from strategies.core.pieces import Overlay
from strategies.core.transcript import Transcript
from strategies.dialects import DIALECTS

_CANDIDATES = 4
_NEWEST = 16  # nodes that are looked up first: a conversation that continues is found by one of its last nodes
_MANY = 1_000  # computing more nodes than this takes so long that other requests get a turn before the look-up
_MAX_MARKS = 128  # digests that are looked up because they may be marks of a client's own compaction
_REMEMBERED = 1_000
"""How many ends of conversations are remembered, each with the sessions that its next turn will read."""

_SHOWN_ID = 64
_ANOTHER_TENANT = (
    "the session id %s is known under another tenant, whose history is not used; if both are one user, whose credential"
    " has changed, see single_user and tenant.from"
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """The session id of a request, and the header or member that gave it.

    `id` is None if the session must be derived from the messages. A `weak` id counts only if the stored history
    continues in the request. The same id in another dialect is another session.
    """

    source: str = DERIVED
    id: str | None = None
    weak: bool = False
    dialect: str = CHAT

    @property
    def key(self) -> str:
        """The name of the session in keys of the store, for an explicit id."""
        return session_key(self.id or "", self.dialect)


class Recognised(NamedTuple):
    """The session of a request, as far as the store has it."""

    identity: Identity
    key: StoreKey  # where the session is stored, or would be
    shown_id: str
    patience: Patience
    session: Session | None = None  # None if the session is new, or could not be read
    branch: Branch | None = None  # the branch that the transcript continues; None if it opens a new one
    condensations: tuple[Condensation, ...] = ()  # the condensations of the session and of its ancestors
    patches: tuple[Overlay, ...] = ()  # hidden rounds of the session and of its ancestors, the newest last
    pins: tuple[Pin, ...] = ()  # the pins of the session; for a new fork, those of its parent, which it takes over
    drops: frozenset[str] = frozenset()  # what a person has dropped from the ledger there, which goes over likewise
    parent: str | None = None  # the stored name of the session that a new one forks from
    inherited: int = 0  # how many first messages a new fork shares with its parent
    failure: str = ""  # the reason of a `StoreError`; "" if the store has answered
    newest_turn: int = 0
    """How many of the last messages are the newest turn; 0 if it is not known what the last request had."""
    card_scope: Session | None = None
    trust: Trust = ALWAYS
    reader: str = ""
    """Whose opaque heads the request's upstream can read; of `condensations` the others are left out."""

    @property
    def last_applied(self) -> str | None:
        """The id of the condensation in the last view of the request's branch; None if that is not known.

        It is "" for a new derived conversation: its requests were sent uncondensed until now, and it uses the
        condensations of conversations that begin alike only if it must be condensed anyway.
        """
        if self.session is None:
            return "" if self.identity.id is None else None
        return self.branch.applied if self.branch else None

    @property
    def stored_id(self) -> str:
        """The id that the session has once it is stored."""
        return self.key.name if self.identity.id is None else self.shown_id

    def with_fresh_patience(self) -> Recognised:
        """The same with a full patience, for work that the request does not wait for."""
        return self._replace(patience=self.patience.fresh())

    def continued_by(self, transcript: Transcript) -> Recognised:
        """The same session, with the branch that this transcript continues."""
        return self._replace(branch=self.session.find_branch(transcript) if self.session else None)

    def without_store(self, failure: str) -> Recognised:
        """The same conversation as if nothing of it were stored, because the store has failed."""
        return Recognised(self.identity, self.key, self.shown_id, self.patience, failure=failure, trust=self.trust)

    def spent(self, total: str) -> int:
        """One of the session's totals, as it was when the request came."""
        return self.session.totals.get(total, 0) if self.session else 0

    @property
    def knows_stored(self) -> bool:
        """Whether anything here comes from the store."""
        return self.session is not None or bool(self.condensations)


def new_derived_id() -> str:
    return "d" + secrets.token_hex(8)


class Recogniser:
    """Finds sessions; one per app. `headers` are the names of headers that may hold an id, in order."""

    def __init__(
        self, stored: StoredSessions, headers: Sequence[str], new_session: Callable[[], str] = new_derived_id
    ) -> None:
        self.stored = stored
        self._headers = lowered_names(headers)
        self._new_session = new_session
        self._recent_paths: Lru[tuple[str, bytes], tuple[str, ...]] = Lru(_REMEMBERED)
        self._tenants: Lru[str, str] = Lru(_REMEMBERED)
        """Whose an explicit id is, by the session's key; "" once it was said that another tenant names it too."""

    def identify(self, own_id: str | None, headers: Headers, endpoint: Endpoint, values: Values) -> Identity:
        """The session id of the first source that has one; raises `BadRequest` for control characters in it.

        The sources are the proxy's own header or body key (`own_id`), the configured headers, then what the endpoint
        knows. `values` are the members of the body.
        """
        dialect = endpoint.dialect.name
        if own_id is not None:
            return Identity(OWN_HEADER, own_id, dialect=dialect)
        lowered = [(header.lower(), value) for header, value in headers]
        first_of = dict(reversed(lowered))
        configured = (
            SessionHint(name, first_of[header].decode("latin-1"))
            for header, name in self._headers.items()
            if header in first_of
        )
        for hint in chain(configured, endpoint.session_hints(lowered, values)):
            if isinstance(hint.id, str) and hint.id:
                if any(ord(char) < 0x20 or ord(char) == 0x7F for char in hint.id):
                    raise BadRequest(f"{hint.source} holds control characters.", param=hint.source)
                return Identity(hint.source, hint.id, hint.is_weak, dialect)
        return Identity(dialect=dialect)

    async def recognise(
        self, tenant: str, identity: Identity, transcript: Transcript, patience: Patience, trust: Trust = ALWAYS
    ) -> Recognised:
        """The session of a transcript; a failure of the store is reported in the result.

        In place of one that may not be shown, the caller has one that is kept apart.
        """
        blank = self._blank(tenant, identity, transcript, patience, trust)
        try:
            found = await patience.read(self._recognise(tenant, blank, transcript))
            if not trust.elsewhere or not found.session or await trust.shows(found.session.traits, patience):
                return found
            blank = self._blank(trust.stranger, identity, transcript, patience, trust)
            return await patience.read(self._recognise(trust.stranger, blank, transcript))
        except StoreError as error:
            self.stored.outage.failed("the store failed", error)
            return blank._replace(failure=error.reason)

    async def with_card_scope(self, found: Recognised, name: str, *, read: bool) -> Recognised:
        """`found` with the scope of that name; with `read`, its cards are read too unless the store fails."""
        traits = {UNPROVEN: True} if found.trust.elsewhere else {}
        scope = Session(id=SHOWN + name, source=SOURCE, created_at=0.0, traits=traits)
        try:
            if read and not found.failure:
                stored = await found.patience.read(self.stored.load(scope_key(found.key.tenant, scope.id)))
                if stored is not None and await found.trust.shows(stored.traits, found.patience):
                    scope = stored._replace(traits=traits)
        except StoreError as error:
            self.stored.outage.failed("the cards of a scope were not read", error)
        return found._replace(card_scope=scope)

    def _blank(
        self, tenant: str, identity: Identity, transcript: Transcript, patience: Patience, trust: Trust
    ) -> Recognised:
        if identity.id is not None:
            key = StoreKey(tenant, identity.key)
            return Recognised(identity, key, printable_id(identity.id), patience, trust=trust)
        task = transcript.task
        opening = transcript.chain[task].digest if task is not None else b""
        key = StoreKey(tenant, self._new_session())
        return Recognised(identity, key, provisional_id(tenant, opening), patience, trust=trust)

    async def _recognise(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        if blank.identity.id is None:
            return await self._derive(tenant, blank, transcript)
        session = await self.stored.load(blank.key)
        if session is None:
            self._tell_of_another_tenant(blank)
            return blank
        if blank.key.name not in self._tenants:
            self._tenants.put(blank.key.name, tenant)
        branch = session.find_branch(transcript)
        if blank.identity.weak and branch is None:
            unnamed = Identity(dialect=blank.identity.dialect)
            derived = self._blank(tenant, unnamed, transcript, blank.patience, blank.trust)
            return await self._derive(tenant, derived, transcript)
        return blank._replace(
            session=session,
            branch=branch,
            condensations=session.condensations,
            patches=session.patches,
            pins=session.pins,
            drops=session.drops,
            newest_turn=newest_turn(session, branch, transcript),
        )

    def _tell_of_another_tenant(self, found: Recognised) -> None:
        """Logs, once for each id, that a tenant begins a session under an id that is another tenant's."""
        known = None if found.identity.weak else self._tenants.get(found.key.name)
        if known and known != found.key.tenant:
            self._tenants.put(found.key.name, "")
            _log.warning(_ANOTHER_TENANT, label(found.shown_id, _SHOWN_ID))

    async def _derive(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        """The derived session that this transcript continues, or a fork of the one that it shares most with."""
        nodes = transcript.digests[::-1]
        if len(nodes) > _MANY:
            await next_step()
        newest, older = nodes[:_NEWEST], nodes[_NEWEST:]
        paths = [path for node in newest if (path := self._recent_paths.get((tenant, node)))]
        likely = paths[0] if paths else ()
        lookup = SessionLookup(self.stored, tenant, likely)
        marks = [] if likely or not newest else candidates(transcript)[:_MAX_MARKS]
        if marks:  # together with what is looked up first
            await lookup.names([*(node.hex() for node in newest), *marks])
        found = await self._match(lookup, blank, transcript, newest) if newest else None
        if found is None and older:
            found = await self._match(lookup, blank, transcript, older)
        if found is None or found.branch is None:
            found = await self._restarted(lookup, blank, transcript, marks) or found
        if found is None:
            return blank
        path = (found.key.name, *lookup.path(found.session.parent if found.session else found.parent))
        begins = openings(transcript.having(newest_turn=found.newest_turn))
        for node in (*nodes[:2], *(opening.node for opening in begins)):
            self._recent_paths.put((tenant, node), path)
        return found

    async def _match(
        self, lookup: SessionLookup, blank: Recognised, transcript: Transcript, nodes: Sequence[bytes]
    ) -> Recognised | None:
        """The session to which some nodes of the chain lead, newest first; None if none leads to a derived session."""
        digests = [digest.hex() for digest in nodes]
        indexed = await lookup.names(digests)
        nearest: tuple[str, Session] | None = None
        for name in list(dict.fromkeys(indexed[digest] for digest in digests if digest in indexed))[:_CANDIDATES]:
            session = await lookup.session(name)
            if session is None or session.source != DERIVED or session.dialect != blank.identity.dialect:
                continue
            branch = session.find_branch(transcript)
            # After a longer match was rejected, a shorter one counts only if its reply proves the conversation.
            if branch is not None and branch.is_answered_alike(transcript, must_be_known=nearest is not None):
                recognised = await _with_records(lookup, blank, session)
                key, newest = StoreKey(lookup.tenant, name), newest_turn(session, branch, transcript)
                return recognised._replace(key=key, shown_id=name, session=session, branch=branch, newest_turn=newest)
            # Not continued: another conversation may have sent the same messages and be ahead of this one.
            nearest = nearest or (name, session)
        if nearest is None:
            return None
        name, session = nearest
        node = next(digest for digest in nodes if indexed.get(digest.hex()) == name)
        inherited = transcript.digests.index(node) + 1
        recognised = await _with_records(lookup, blank, session)
        # A fork links to the nearest session that has more for it, so that chains of forks of conversations that begin
        # alike stay short.
        parent = name if session.has_more_for_fork(inherited) else session.parent
        newest = newest_turn(session, session.find_branch(transcript), transcript, inherited)
        return recognised._replace(parent=parent, inherited=inherited, newest_turn=newest)

    async def _restarted(
        self, lookup: SessionLookup, blank: Recognised, transcript: Transcript, marks: Sequence[str]
    ) -> Recognised | None:
        """The session of which a transcript restarts a branch, because its client has compacted that by itself."""
        indexed = await lookup.names(marks)
        for name in list(dict.fromkeys(indexed.values()))[:_CANDIDATES]:
            session = await lookup.session(name)
            if session is None or session.source != DERIVED or session.dialect != blank.identity.dialect:
                continue
            branch = session.find_branch(transcript)
            if branch is not None and branch.is_restarted:
                recognised = await _with_records(lookup, blank, session)
                return recognised._replace(
                    key=StoreKey(lookup.tenant, name), shown_id=name, session=session, branch=branch
                )
        return None


async def _with_records(lookup: SessionLookup, blank: Recognised, session: Session) -> Recognised:
    """`blank` with the pins of a session, and the condensations and hidden rounds of it and its ancestors.

    If a session and its ancestor have the same condensation, the session's own copy says whether it stands.
    """
    sessions = [session, *await lookup.ancestors(session)]
    condensations = tuple({record.id: record for one in reversed(sessions) for record in one.condensations}.values())
    if gone := session.drops and dropped_from_ancestors(session):  # its own lack what they must since they were read
        own, dialect = {made.id for made in session.condensations}, DIALECTS[session.dialect]
        condensations = tuple(made if made.id in own else made.without(gone, dialect) for made in condensations)
    patches = tuple(patch for one in reversed(sessions) for patch in one.patches)
    return blank._replace(condensations=condensations, patches=patches, pins=session.pins, drops=session.drops)


def provisional_id(tenant: str, opening: bytes) -> str:
    """An id for a conversation that is not stored; it only serves to tell two of them apart in headers and logs."""
    return "p" + blake2b(opening, key=tenant.encode()[:64], digest_size=8).hexdigest()
