"""`POST /v1/compress`: the view of a list is the answer, for gateways and frameworks that send it themselves.

One more end of the one way: the turn with its session, and an answered view counts as forwarded. Nothing is sent to the
upstream, so nothing proves the caller's credential now: unless that was proved lately, or callers have keys or are one,
nothing stored is used. Without a session's id rows keep their places (`strategies/rows.py`), because gateways put them
back among others; that follows from the list alone. Only a strategy that is named asks a model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.bodies import wire
from proxy.bodies.scanning import Tally, scan_members
from proxy.bodies.wire import Body, ClientRequest
from proxy.callers.tenants import ALWAYS
from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Turn, idle_decision, is_rewritten, last_resort, marked, undecided
from proxy.condensing.policy import OFF
from proxy.condensing.turn import Decision, RequestContext
from proxy.controls import KEYS, Member
from proxy.conversations.searching import NO_OFFER
from proxy.errors import BadRequest, ProxyError
from proxy.log import RequestLine
from proxy.protocols import ENDPOINTS
from proxy.protocols.endpoint import Endpoint
from proxy.quoting import quoted
from proxy.reasons import Action, Reason, Trigger
from proxy.runtime.owned_tasks import load_of, offload
from proxy.turn.drive import follow_up, store, take_in
from proxy.turn.ends import own_reply
from proxy.turn.reading import AdmittedRequest, ClientGone, PassOn, admit, read_request, require_history, spend
from strategies import DEFAULT, Pipeline, parse, stages
from strategies.mask import Mask
from strategies.rows import STAGES, Rows
from strategies.shorten import Shorten

if TYPE_CHECKING:
    from proxy.services import Services

PATH = "/v1/compress"
_OWN = {"session-id": "session", "protocol": "", "rows": "", "mode": ""}  # `mode` is Headroom's: here there is one
_NOT_HERE = ("session", "history", "if-head", "dry-run")
_CONFIG = Member("config", _OWN | {key: key for key in KEYS if key not in _NOT_HERE})
_log = logging.getLogger(__name__)


def _compressing(endpoint: Endpoint) -> Endpoint:
    """The endpoint as it is here: its list is in `messages`, and what is asked of the proxy in `config`."""
    here = copy(endpoint)
    here.list_member, here.list_is_optional, here.from_text, here.controls_member = "messages", False, None, _CONFIG
    return here


_ENDPOINTS = {name: _compressing(endpoint) for name, endpoint in ENDPOINTS.items()}


async def _read(line: RequestLine, data: bytes, _: Endpoint, cache: Any, bounds: Any, *, owner: str) -> Body:
    """Reads a body in the protocol that it names, whose form errors have from then on."""
    if b'"protocol"' in data:  # which may stand anywhere; most bodies need not be parsed for it
        name = await asyncio.to_thread(_protocol_in, data, Tally(_ENDPOINTS["chat"], bounds, len(data)))
        line.endpoint = _ENDPOINTS[_word({"protocol": name}, "protocol", _ENDPOINTS) or "chat"]
    return await wire.read_through_cache(data, line.endpoint or _ENDPOINTS["chat"], cache, bounds, owner=owner)


def _protocol_in(data: bytes, tally: Tally) -> object:
    try:
        config = scan_members(data.decode(), tally).get(_CONFIG.name)
    except (ValueError, RecursionError):
        return None  # who reads it next says what is wrong
    return config.value.get("protocol") if config and isinstance(config.value, dict) else None


def _word(config: dict[str, Any], key: str, known: Collection[str]) -> str:
    """A word of the `config`; "" if it is not set. Raises `BadRequest` for one that is not known."""
    value = config.get(key)
    if value is None or (isinstance(value, str) and value in known):
        return value or ""
    raise BadRequest(f"config.{key} must be one of {', '.join(known)}, not {quoted(value)}.", param=f"config.{key}")


class Compress:
    """What is served at the path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        came = admit(scope, receive, send)
        endpoint = came.line.endpoint = _ENDPOINTS["chat"]
        try:
            asked = await read_request(endpoint, came, partial(_read, came.line))
            with came.client.unless_gone():
                await spend(came, asked)
                require_history(asked)
                response = await _answer(came, asked)
            await came.answer(response)
        except ClientGone:
            await came.leave_unanswered()
        except (ProxyError, PassOn) as error:
            if came.is_replying:
                raise
            await came.answer(_refusal(came, error))
        finally:
            await came.end()


def _refusal(came: AdmittedRequest, error: ProxyError | PassOn) -> Response:
    if isinstance(error, PassOn):  # nothing is passed on from here
        error = BadRequest(f"The body must be readable, and its list whole ({error.reason}).", param="messages")
    came.line.error, endpoint = error.code or error.type, came.line.endpoint or _ENDPOINTS["chat"]
    return Response(endpoint.error_body(error), error.status, dict(error.headers), media_type="application/json")


async def _answer(came: AdmittedRequest, asked: ClientRequest) -> Response:
    services, controls, config = came.services, asked.controls, asked.body.values.get(_CONFIG.name) or {}
    keeps_rows = (_word(config, "rows", ("keep", "free")) or ("free" if controls.session else "keep")) == "keep"
    if controls.needs_reading:
        param = controls.param("history" if controls.append else "dry-run")
        raise BadRequest(f"{param} is not for {PATH}, which answers the whole view.", param=param)
    if keeps_rows:
        asked = _keeping_rows(services, asked)
    trusted = came.owner.key is not None or services.settings.tenant_source == "fixed"
    asked = asked._replace(trust=ALWAYS) if trusted else asked
    await asked.trust.look_up(services.stored.patience())
    # An upstream that takes anybody's credential, or none, proves nobody.
    is_alone = keeps_rows or not (trusted or (asked.trust.credential and asked.trust.may_see_stored))
    if is_alone:  # under an id that no session has
        alone = replace(asked.controls, session=secrets.token_hex(), no_store=True)
        asked = asked._replace(controls=alone)
    turn, elements = await _decided(services, asked, _by_rows if keeps_rows else _viewed)
    came.line.turn, decision = turn, turn.sent.decision
    if is_alone:
        reason = decision.reason or ("" if keeps_rows else Reason.CREDENTIAL_UNPROVEN)
        turn.sent = turn.sent._replace(decision=decision._replace(session=controls.session or "none", reason=reason))
    return own_reply(_document(turn.sent.decision, elements, await _settled(services, turn)), turn)


async def _decided(services: Services, asked: ClientRequest, decide: Any) -> tuple[Turn, Sequence[bytes]]:
    """The turn, and the list that answers it; after a defect the list as it came. Raises `ProxyError`."""
    timing = Timing()
    try:
        context = await take_in(services, asked, timing)
        started = perf_counter()
        decision, elements = await decide(services, context)
        sent = services.attempts.of(decision)
        timing.condense += (perf_counter() - started) * 1000
        return Turn(asked, timing, sent), elements or _list_of(sent.decision)
    except ProxyError:
        raise
    except Exception:  # noqa: BLE001
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
    named = asked.controls.strategy
    if named is not None and not {*named.names} <= {*STAGES, *OFF.names}:
        param = asked.controls.param("strategy")
        message = f"{param}: rows keep their places under {'+'.join(STAGES)} only, not under {quoted(named.text)}"
        raise BadRequest(f"{message}; that needs config.session_id, or config.rows = 'free'.", param=param)
    if (pipeline := named or parse(services.settings.own("strategy", model=asked.model)) or OFF).is_off:
        return asked
    return asked._replace(controls=replace(asked.controls, strategy=Pipeline(STAGES, pipeline.observe)))


async def _by_rows(services: Services, context: RequestContext) -> tuple[Decision, Sequence[bytes]]:
    """The decision on a list whose rows keep their places, and the rows if any is shorter."""
    if context.is_idle or context.policy.pipeline.is_off:
        return idle_decision(context), ()
    context = await services.completer.with_counts(context)
    budget, sent, (mask, shorten) = context.sized.budget, context.history.sent, context.policy.stages
    assert isinstance(mask, Mask)
    assert isinstance(shorten, Shorten)
    messages = list(sent.transcript.chain)
    for place, system in reversed(sent.transcript.systems):
        messages.insert(place, system)
    rows = Rows(context.server.counter, mask.options.min_tokens, shorten.options.min_tokens)
    if budget is not None:
        await offload(load_of(messages), rows.go_through, messages, context.sized.overhead, budget)
    decision = undecided(context, context.policy.below)
    if not rows.saved:
        return decision, ()
    action = Action.WOULD_CONDENSE if context.policy.pipeline.observe else Action.CONDENSED
    decision = decision._replace(tokens_after=sent.tokens - rows.saved, action=action, reason="")
    decision = decision._replace(trigger=Trigger.THRESHOLD, metadata={"stages": sorted(rows.stages)})
    if action is Action.WOULD_CONDENSE:
        return decision, ()
    texts = [rows.shorter.get(i) for i in range(len(messages))]
    elements = zip(context.request.body.elements, texts, strict=True)
    return decision, [each.data if text is None else text.encode("utf-8", "surrogatepass") for each, text in elements]


async def _settled(services: Services, turn: Turn) -> str:
    """Stores the session as after a request that was accepted; returns why the answer is degraded, "" if it is not."""
    turn.reply = turn.reply._replace(status=HTTPStatus.OK, milliseconds=turn.timing.since_start)
    turn.put_down()
    decision, outage = turn.sent.decision, services.stored.outage
    if turn.sent.stores:
        await store(services, turn)
        if decision.context.policy.asks_models:
            follow_up(services, turn)
        if outage.unwritten:
            return outage.unwritten
    return decision.reason if decision.action is Action.DEGRADED else ""


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
