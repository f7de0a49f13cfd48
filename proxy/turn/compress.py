"""`POST /v1/compress`: the view of a list is the answer, for gateways and frameworks that send it themselves.

It is the turn with its session, and an answered view counts as forwarded. Nothing is sent to the upstream, so nothing
proves the caller now: unless that was done lately, or callers have keys or are one, nothing stored is used. Without a
session's id rows keep their places (`strategies/rows.py`), because gateways put them back among others; that follows
from the list alone. Only a strategy that is named asks a model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from proxy.bodies import wire
from proxy.bodies.scanning import Tally, scan_members
from proxy.bodies.wire import Body, ClientRequest
from proxy.callers.tenants import ALWAYS
from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Turn, idle_decision, is_rewritten, last_resort, marked, undecided
from proxy.condensing.turn import Decision, RequestContext
from proxy.controls import KEYS, Member, pipeline_named
from proxy.conversations.searching import NO_OFFER
from proxy.errors import BadRequest, ProxyError
from proxy.log import RequestLine
from proxy.protocols import ENDPOINTS
from proxy.protocols.endpoint import Endpoint
from proxy.quoting import quoted
from proxy.reasons import NO_MORE_CONDENSED, REASONS, Action, Reason, Trigger
from proxy.runtime.owned_tasks import load_of, offload
from proxy.turn.drive import follow_up, store, take_in
from proxy.turn.ends import Served, own_reply
from proxy.turn.layer import error_response
from proxy.turn.reading import AdmittedRequest, PassOn, read_request, require_history, spend
from strategies import DEFAULT, Pipeline, stages
from strategies.mask import Mask
from strategies.rows import STAGES, Rows
from strategies.shorten import Shorten

if TYPE_CHECKING:
    from proxy.services import Services

PATH = "/v1/compress"
_OWN = {"session-id": "session", "protocol": "", "rows": "", "mode": ""}  # `mode` is Headroom's: here there is one
_CONFIG = Member("config", _OWN | {key: key for key in KEYS if key not in ("session", "history", "if-head", "dry-run")})
_FAILURES = REASONS - {*Reason, *NO_MORE_CONDENSED} | {Reason.INTERNAL_ERROR}
_log = logging.getLogger(__name__)


def _compressing(endpoint: Endpoint) -> Endpoint:
    """The endpoint as it is here: its list is in `messages`, and what is asked of the proxy in `config`."""
    here = copy(endpoint)
    here.list_member, here.list_is_optional, here.from_text, here.controls_member = "messages", False, None, _CONFIG
    return here


_ENDPOINTS = {name: _compressing(endpoint) for name, endpoint in ENDPOINTS.items()}


async def _read(line: RequestLine, data: bytes, endpoint: Endpoint, *rest: Any, owner: str) -> Body:
    """Reads a body in the protocol that it names, whose form errors have from then on."""
    if b'"protocol"' in data:  # which may stand anywhere; most bodies need not be parsed for it
        with suppress(ValueError, RecursionError):  # who reads it next says what is wrong
            members = await asyncio.to_thread(scan_members, data.decode(), Tally(endpoint, rest[1], len(data)))
            config = members[_CONFIG.name].value if _CONFIG.name in members else None
            named = _word(config, "protocol", _ENDPOINTS) if isinstance(config, dict) else ""
            endpoint = line.endpoint = _ENDPOINTS[named or "chat"]
    return await wire.read_through_cache(data, endpoint, *rest, owner=owner)


def _word(config: dict[str, Any], key: str, known: Collection[str]) -> str:
    """A word of the `config`; "" if it is not set. Raises `BadRequest` for one that is not known."""
    value = config.get(key)
    if value is None or (isinstance(value, str) and value in known):
        return value or ""
    raise BadRequest(f"config.{key} must be one of {', '.join(known)}, not {quoted(value)}.", param=f"config.{key}")


class Compress(Served):
    """What is served at the path; errors have the form of the list's protocol, and nothing is passed on."""

    async def app_for(self, came: AdmittedRequest) -> ASGIApp:
        endpoint = came.line.endpoint = _ENDPOINTS["chat"]
        try:
            asked = await read_request(endpoint, came, partial(_read, came.line))
            with came.client.unless_gone():
                await spend(came, asked)
                require_history(asked)
                return await _answered(came, asked)
        except (ProxyError, PassOn) as raised:
            error = raised
            if isinstance(error, PassOn):
                error = BadRequest(f"The body must be readable, its list whole ({error.reason}).", param="messages")
            came.line.error = error.code or error.type
            return error_response(error, came.line.endpoint.path)


async def _answered(came: AdmittedRequest, asked: ClientRequest) -> ASGIApp:
    services, controls, config = came.services, asked.controls, asked.body.values.get(_CONFIG.name) or {}
    rows = _word(config, "rows", ("keep", "free")) or ("free" if controls.session else "keep")
    if controls.needs_reading:
        param = controls.param("history" if controls.append else "dry-run")
        raise BadRequest(f"{param} is not for {PATH}, which answers the whole view.", param=param)
    settings = services.settings
    if came.owner.key is not None or (settings.single_user and settings.tenant_source == "fixed"):
        asked, knows = asked._replace(trust=ALWAYS), True
    else:  # an upstream that takes any credential, or none, proves nobody
        await asked.trust.look_up(services.stored.patience())
        knows = bool(asked.trust.credential) and asked.trust.may_see_stored
    asked = _keeping_rows(services, asked) if rows == "keep" else asked
    if is_alone := rows == "keep" or not knows:  # under an id that no session has
        asked = asked._replace(controls=replace(asked.controls, session=secrets.token_hex(), no_store=True))
    turn, elements = await _decided(services, asked, _by_rows if rows == "keep" else _viewed)
    came.line.turn, decision = turn, turn.sent.decision
    if is_alone:
        reason = decision.reason or ("" if rows == "keep" else Reason.CREDENTIAL_UNPROVEN)
        turn.sent = turn.sent._replace(decision=decision._replace(session=controls.session or "none", reason=reason))
    return own_reply(_document(turn.sent.decision, elements, await _settled(services, turn)), turn)


async def _decided(services: Services, asked: ClientRequest, decide: Any) -> tuple[Turn, Sequence[bytes]]:
    """The turn, and the list that answers it; after a defect the list as it came. Raises `ProxyError`."""
    timing = Timing()
    try:
        context = await take_in(services, asked, timing)
        decision, elements = await decide(services, context)
        sent = services.attempts.of(decision)
        timing.condense = max(timing.since_start - timing.ours, 0.0)
        return Turn(asked, timing, sent), elements or _list_of(sent.decision)
    except Exception as error:
        if isinstance(error, ProxyError):
            raise
        _log.exception("a list could not be compressed; the answer is the list as it came")
        decision = last_resort(asked)._replace(action=Action.DEGRADED, reason=Reason.INTERNAL_ERROR)
        return Turn(asked, timing, Attempt(decision)), _list_of(decision)


def _list_of(decision: Decision) -> Sequence[bytes]:
    view, body = decision.view, decision.context.request.body
    return marked(view, body) if is_rewritten(view, decision.context) else [each.data for each in body.elements]


async def _viewed(services: Services, context: RequestContext) -> tuple[Decision, Sequence[bytes]]:
    """The decision as on a request that is sent, but for the memory tool, which only a reply could call."""
    policy, request = context.policy, context.request
    context = context.with_offer(NO_OFFER)._replace(offerable=NO_OFFER)
    if request.controls.strategy is None and policy.asks_models:
        rules = [each for each in policy.stages if not each.asks]
        rules = rules or stages(DEFAULT.split("+"), {}, services.policies.tables)
        context = context._replace(policy=policy._replace(stages=rules, judging=None, asks_models=False))
    elif policy.asks_models and request.upstream.judges_callers:
        roles = [policy.summarizer, *([policy.judge] if policy.judging else [])]
        if policy.reads_opaque or any(role.is_at(request.upstream.name) for role in roles):
            param, needs = request.controls.param("strategy"), "needs a key of the operator's, or summarizer.base_url"
            raise BadRequest(f"{param}: {quoted(policy.pipeline.text)} asks a model, which here {needs}.", param=param)
    return idle_decision(context) if context.is_idle else await services.decider.decide(context), ()


def _keeping_rows(services: Services, asked: ClientRequest) -> ClientRequest:
    """The request under the stages that keep rows, unless `off` is asked for or set; raises `BadRequest` for others."""
    named, param = asked.controls.strategy, asked.controls.param("strategy")
    pipeline = named or pipeline_named(services.settings.own("strategy", model=asked.model))
    if named is not None and not named.is_off and not {*named.names} <= {*STAGES}:
        message = f"{param}: only {'+'.join(STAGES)} keeps rows; name a config.session_id, or config.rows = 'free'."
        raise BadRequest(message, param=param)
    strategy = pipeline if pipeline.is_off else Pipeline(STAGES, pipeline.observe)
    return asked._replace(controls=replace(asked.controls, strategy=strategy))


async def _by_rows(services: Services, context: RequestContext) -> tuple[Decision, Sequence[bytes]]:
    """The decision on a list whose rows keep their places, and the rows if any is shorter."""
    options = [each.options for each in context.policy.stages if isinstance(each, Mask | Shorten)]
    if context.is_idle or not options or context.sized.budget is None:
        return idle_decision(context), ()
    context = await services.completer.with_counts(context)
    sent, is_observed = context.history.sent, context.policy.pipeline.observe
    messages = list(sent.transcript.chain)
    for place, system in reversed(sent.transcript.systems):
        messages.insert(place, system)
    rows = Rows(context.server.counter, *[each.min_tokens for each in options])
    await offload(load_of(messages), rows.go_through, messages, context.sized.overhead, context.budget)
    if not rows.saved:
        return idle_decision(context), ()
    decision = undecided(context)._replace(
        tokens_after=sent.tokens - rows.saved,
        action=Action.WOULD_CONDENSE if is_observed else Action.CONDENSED,
        trigger=Trigger.THRESHOLD,
        metadata={"stages": sorted(rows.stages)},
    )
    texts = {i: text.encode("utf-8", "surrogatepass") for i, text in rows.shorter.items()}
    elements = [texts.get(i, each.data) for i, each in enumerate(context.request.body.elements)]
    return decision, () if is_observed else elements


async def _settled(services: Services, turn: Turn) -> str:
    """Stores the session as after a request that was accepted; returns why the answer is degraded, "" if it is not."""
    turn.reply = turn.reply._replace(status=HTTPStatus.OK, milliseconds=turn.timing.since_start)
    turn.put_down()
    decision = turn.sent.decision
    failure = decision.reason if decision.reason in _FAILURES else ""
    if turn.sent.stores:
        await store(services, turn)
        if decision.context.policy.asks_models:
            follow_up(services, turn)
        failure = services.stored.outage.unwritten or failure
    return failure


def _document(decision: Decision, elements: Sequence[bytes], failure: str) -> bytes:
    before, after = decision.context.history.sent.tokens, decision.forwarded_tokens
    document: dict[str, Any] = {
        "tokens_before": before,
        "tokens_after": after,
        "tokens_saved": before - after,
        "compression_ratio": round(after / before, 4) if before else 1.0,
        "transforms_applied": decision.metadata.get("stages", []),
        "ccr_hashes": [],
        "action": decision.action,
        "reason": decision.reason or None,
        **({"degraded": failure} if failure else {}),
    }
    return b'{"messages":[%s],%s' % (b",".join(elements), json.dumps(document)[1:].encode())
