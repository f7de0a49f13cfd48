"""The checks of `condenser check` and `condenser doctor`: what is right, what is worth knowing, what is to be mended.

A check is a function that reads what a command has asked, and yields findings; it asks nothing itself. `CHECKS` is the
table of them. Nothing that serves is imported here, because a command that asks a proxy must start quickly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.cli import DOCUMENTS
from proxy.commands.proxy_client import RunningProxy, moment
from proxy.conversations.totals import notices
from proxy.errors import UpstreamUnavailable
from proxy.quoting import redacted
from proxy.store.base import WEAKNESSES

if TYPE_CHECKING:
    from proxy.commands.numbers import CheckedModel
    from proxy.services import Services
    from proxy.settings import Settings

OK, NOTE, WRONG = "ok", "note", "wrong"
_COLUMNS, _ROWS = 100, 12
_REASONS = DOCUMENTS / "reference/reasons.md"
_WRAP = "condenser wrap -- claude"
_TRIGGERS = {"share": "marks.trigger", "most": "marks.most", "step": "the price step"}
_OLD = 30  # days
_LARGE = 100_000  # tokens of a window that an agent rarely fills up to the trigger
_AGENTS = {"x-claude-code-session-id": "Claude Code", "thread-id": "Codex", "x-opencode-session": "opencode"}
"""Agents that compact by themselves, by the header that names their sessions."""
_LEFT = "status_499"  # the client left, which is no fault
_REMEDIES = {
    "status_401": "give the client a valid key; or the proxy, if upstream.api_key holds it.",
    "status_403": "give the client a key that may use this model.",
    "status_404": "check the name of the model, and the upstream's address with `condenser check`.",
    "status_429": "wait, or ask the provider for a higher limit.",
    "error_upstream_unreachable": "check its address with `condenser check`, and that it runs.",
    "error_context_length_exceeded": "set a larger `window`, or send less at once; the error says what is large.",
    "error_invalid_request_error": "look at the error in the client: it names the parameter.",
    "error_overloaded": "send fewer requests at once, or raise limits.in_flight.",
    "error_rate_limit_exceeded": "wait, or raise limits.tokens_per_minute.",
    "degraded": f"{_REASONS} has the reasons above; the log has details.",
    "own-calls": "check the models of [summarizer] and [judge]; `condenser sessions show` has the errors.",
    "store-full": "free disk space, or name another place with --store.",
    "store-read-only": "let this user write there, or name another place with --store.",
    "store-unavailable": "start its server, or correct store.url.",
    "store-timeout": "start its server, or raise store.timeout.",
    "reason_server-state": "let the client send its whole history (`store: false`).",
    "reason_unresolved-reference": "let the client send the items themselves.",
    "reason_not-condensed-endpoint": "use /v1/chat/completions, /v1/responses or /v1/messages.",
    "reason_encoded-body": "send bodies unpacked, or with gzip, deflate, br or zstd.",
    "reason_rewrite-refused": "find the cause in the log, mend it, and delete the session.",
}


class Finding(NamedTuple):
    """A finding in a few sentences, what to do about it, and commands or settings for that, one in each line."""

    name: str
    level: str
    text: str
    remedy: str = ""
    lines: Sequence[str] = ()


class Setup(NamedTuple):
    """What `check` looks at."""

    settings: Settings
    services: Services | None  # None if they could not be opened, not even with a store in memory
    wait: Callable[[Coroutine[Any, Any, Any]], Any]  # runs what the services are asked
    problem: str = ""  # of the store
    is_offline: bool = False
    running: RunningProxy | None = None  # the proxy that runs here; it tells what it knows of what is checked only
    model: CheckedModel | None = None
    weaknesses: Collection[str] = ()  # of the store


def findings(command: str, asked: Setup | RunningProxy) -> list[Finding]:
    """What the checks of a command find."""
    found = (each for check in CHECKS[command] for each in check(asked))
    return sorted(found, key=lambda each: each.name != "recipe")  # that one stands first


def report(command: str, found: Sequence[Finding], *, is_json: bool, **more: object) -> int:
    """Prints findings, as JSON with `more`; the exit status is 1 if something is wrong."""
    wrong = sum(each.level == WRONG for each in found)
    if is_json:
        document = {"object": command, "ok": not wrong, "findings": [each._asdict() for each in found], **more}
        print(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        for each in found:
            print("\n".join(_printed(each)))
        print(f"{_times(wrong, 'thing')} to mend." if wrong else "Nothing is wrong.")
    return int(wrong > 0)


def _printed(finding: Finding) -> Iterator[str]:
    space = " " * 7
    for begin, text in ((finding.level.ljust(7), finding.text), (f"{space}Do this: ", finding.remedy)):
        if text:
            yield fill(begin + text, _COLUMNS, subsequent_indent=space, break_long_words=False, break_on_hyphens=False)
    yield from (f"{space}  {line}" for line in finding.lines)


# The settings, and what they name


def _kept(setup: Setup) -> Iterator[Finding]:
    used, named = setup.services.settings.store.url if setup.services else "", setup.settings.store.url
    state = "which works and is encrypted" if setup.settings.store.encryption_key else "which works"
    state = state if used == named else "a file that does not exist yet; `serve` makes it"
    yield Finding("settings", OK, "The settings are valid.")
    yield from _store(redacted(named), setup.problem, state)
    for weakness in sorted(setup.weaknesses):
        text, _, remedy = WEAKNESSES[weakness].partition("; ")
        yield Finding(weakness, NOTE, f"{text[:1].upper()}{text[1:]}.", f"{remedy}.")


def _tokenizers(setup: Setup) -> Iterator[Finding]:
    if (services := setup.services) is None:
        return
    for name in services.tokenizers.states():
        problem = services.tokenizers.encoder(name).problem
        text = f"Tokenizer {name}: {problem or 'ready, loaded when it is first needed'}."
        yield Finding("tokenizer", WRONG if problem else OK, text)


def _upstreams(setup: Setup) -> Iterator[Finding]:
    if (services := setup.services) is None or setup.is_offline:
        return
    for each in services.destinations:
        url = f"{each.name}: " * (len(services.destinations) > 1) + redacted(each.base_url)
        try:
            status = setup.wait(services.upstream.probe(each))
        except UpstreamUnavailable as error:
            yield Finding("upstream", WRONG, f"{url}: {error.message}", "start it, or correct its address.")
            continue
        level, note, remedy = OK, "", ""
        if status >= 500:
            level, remedy = WRONG, "look at the log of that server."
        elif status in {401, 403} and each.api_key is not None:
            level, note, remedy = WRONG, f": it refuses the api_key of '{each.name}'", "correct that key."
        elif status in {401, 403}:
            note = ": it needs a key, which callers send"
        yield Finding("upstream", level, f"{url} answers {status}{note}.", remedy)
        if level == OK and setup.settings.upstream.discover:
            server = services.discovered[each.base_url]
            setup.wait(server.ask())
            said = f"is {server.kind}" if server.kind else "reports no context length, or only with a credential"
            yield Finding("server", OK, f"{url} {said}.")
            yield from (Finding("server", NOTE, f"{url}: {advice}.") for advice in server.advice)


def _running(setup: Setup) -> Iterator[Finding]:
    if (proxy := setup.running) is not None:
        text = "" if proxy.known is not None else " What it knows is shown only with its admin token."
        yield Finding("running", OK, f"A proxy runs at {proxy.base}.{text}")
        yield from known_of(proxy)


def _model(setup: Setup) -> Iterator[Finding]:
    """How well the tokenizer's count and the length predict the upstream's count, and whether the window is known."""
    if (model := setup.model) is None:
        return
    figures = setup.wait(model.figures(setup.services)) if setup.services and not setup.problem else None
    if figures is not None:
        picture = "as published" if figures.picture is None else f"{figures.picture:,.0f} tokens"
        errors = figures.first_error, figures.later_error
        first, later = ("unknown" if each is None else f"{each:.1%}" for each in errors)
        text = (
            f"Each prompt has {figures.offset:,.0f} tokens more than we count, text × {figures.slope:.2f}, a picture"
            f" {picture}; error of the count {first} at first requests, {later} later."
        )
        yield Finding("calibration", OK, text)
    policy = model.policy
    if policy.window.tokens is None and not any(row["window"] for row in model.known):
        trigger = policy.budget.trigger if policy.budget else None
        yield _window_unknown(model.model, f"The window of {model.model} is unknown.", trigger)


def _window_unknown(model: str, text: str, trigger: int | None) -> Finding:
    below = "Nothing" if trigger is None else f"Below {trigger:,} tokens (marks.most) nothing"
    text += f" {below} is condensed until the upstream states its window or refuses a request for its length."
    remedy = "send it a request and ask again, or set the window that your server has, for instance:"
    return Finding("window-unknown", NOTE, text, remedy, [*_entry(model), "window = 32768"])


def _entry(model: str) -> list[str]:
    return ["[[models]]", f"match = {json.dumps(model)}"]


def known_of(proxy: RunningProxy) -> Iterator[Finding]:
    """What a proxy knows of each model of its upstreams, and the source."""
    for row in (proxy.known or {}).get("data", ()):
        tenant = f" (tenant {row['tenant']}…)" if row["tenant"] else ""
        window = f"{row['window']:,} ({row['source']})" if row["window"] else "unknown"
        more = [f"window {window}"] + ([f"until {moment(row['until'])}"] if row["until"] else [])
        more += [f"{name} = {str(value).lower()}" for name, value in row["forms"].items()]
        until = row["refuses_tools_until"]
        more += [f"refuses tools until {moment(until)}"] if until else []
        yield Finding("known", OK, f"Known of {row['model']}{tenant}: {', '.join(more)}.")


# A proxy that runs


def state_of(proxy: RunningProxy) -> Iterator[Finding]:
    """Which proxy answers, and where it sends requests and keeps sessions."""
    ready = proxy.ready
    if not ready:
        start = "start one, or a program behind one of its own:", ["condenser serve --single-user", _WRAP]
        named = "name one that runs here:", [f"condenser doctor --url {url}" for url in proxy.others]
        text = f"{proxy.problem[:1].upper()}{proxy.problem[1:]}."
        yield Finding("no-proxy", WRONG, text, *(named if proxy.others else start))
        return
    is_ready = "ready" if ready["status"] == "ok" else ready["status"]
    text = f"Condenser {ready['version']} at {proxy.base} is {is_ready}; its strategy is {ready['strategy']}."
    yield Finding("proxy", OK, text)
    if "upstream" in ready:
        yield Finding("upstream", OK, f"It sends requests to {ready['upstream']}.")
    state = ready["store"]["state"]
    yield from _store(ready["store"].get("url", "a store"), "" if state == "ok" else state)


def _store(place: str, problem: str, state: str = "which works") -> Iterator[Finding]:
    """Whether sessions are kept; a problem begins with its reason."""
    if problem:
        reason = problem.partition(":")[0]
        remedy = f"see {_REASONS}#{reason}." if reason.startswith("store-") else ""
        text = f"Sessions cannot be kept in {place}: {problem}."
        yield Finding("store", WRONG, text, _REMEDIES.get(reason, remedy))
        return
    yield Finding("store", OK, f"Sessions are kept in {place}, {state}.")
    if place == "memory://":
        text = "Sessions are kept in memory, so the proxy forgets them when it stops."
        yield Finding("memory-store", NOTE, text, "leave --store out, or name a file: --store sqlite:///condenser.db")


def _table(proxy: RunningProxy) -> Iterator[Finding]:
    """Whether the table of models is so old that new models and prices are likely missing."""
    table = proxy.ready.get("models")
    if table and table["days"] > _OLD:
        text = (
            f"Its table of models is of {table['made']}: newer models are unknown to it, and prices may have changed."
        )
        lines = ["pip install --upgrade genai-prices litellm    # one of them is enough", "condenser models update"]
        yield Finding("old-table", NOTE, text, "renew it, and have it read:", [*lines, "condenser reload"])


def _others(proxy: RunningProxy) -> Iterator[Finding]:
    if proxy.ready and proxy.others:
        text = f"{len(proxy.others) + 1} proxies of yours run here. This is about the one at {proxy.base}."
        lines = [f"condenser doctor --url {url}" for url in proxy.others]
        yield Finding("several", NOTE, text, "ask about another one with", lines)


def hidden(proxy: RunningProxy) -> Iterator[Finding]:
    """Why what came in is not known, by the status of the answer."""
    if not proxy.ready or proxy.sums is not None:
        return
    text = "What came in is shown only with the proxy's admin token. There is none here, or it is wrong."
    remedy = "give --token, or set CONDENSER_ADMIN__TOKEN to admin.token of the proxy."
    if proxy.status == 503:
        text, remedy = "What came in is not known, because the store does not answer.", ""
    elif proxy.status == 400:
        text, remedy = "What came in is known for eight days.", "give --hours from 1 to 192."
    yield Finding("hidden", WRONG, text, remedy)


def _arrived(proxy: RunningProxy) -> Iterator[Finding]:
    """Whether requests came, by which protocol, and why some of them were not condensed."""
    if proxy.sums is None:
        return
    total, base, hours = proxy.total, proxy.base, proxy.hours
    span = f"in the last {_times(hours, 'hour')}"
    ways = [
        f"OPENAI_BASE_URL={base}/v1    # SDKs of OpenAI and most others: with /v1",
        f"ANTHROPIC_BASE_URL={base}    # SDKs of Anthropic, Claude Code: without /v1",
        f'codex -c openai_base_url="{base}/v1"    # Codex reads no variable',
        f"{_WRAP}    # or codex, python agent.py: finds a proxy of its own",
    ]
    if total["stray"]:
        text = f"{_times(total['stray'], 'POST request')} {span} got 404 at a path where no model is asked."
        yield Finding("stray", WRONG, text, "correct the address that the client has:", ways)
    if not total["requests"]:
        told = ("",) if total["stray"] else ("point a client at this proxy, in one of these ways:", ways)
        yield Finding("no-request", WRONG, f"No request to a model came {span}.", *told)
        return
    protocols, reasons = _listed(total, "protocol_"), _listed(total, "reason_")
    text = f"{_times(total['requests'], 'request')} came {span}{f': {protocols}' if protocols else ''}."
    condensed = total["action_condensed"] + total["action_replayed"]
    text += f" {condensed:,} went with a condensed history." if condensed else " None was condensed."
    yield Finding("arrived", OK, text + (f" Why not, or not more: {reasons}." if reasons else ""))
    for name in total:
        if name.startswith("reason_") and name in _REMEDIES:
            reason = name.removeprefix("reason_")
            text = f"{_times(total[name], 'request')} could not be condensed: {reason}, see {_REASONS}."
            yield Finding(reason, NOTE, text, _REMEDIES[name])


def _kinds(proxy: RunningProxy) -> Iterator[Finding]:
    """What came of each model, and why nothing of that was condensed."""
    if (arrivals := proxy.arrivals) is None:
        return
    rows = sorted(arrivals["data"], key=lambda row: -sum(row["actions"].values()))
    if not rows and proxy.total["requests"]:
        text = f"It has read no request since it started at {moment(arrivals['started'])}: no model is known."
        yield Finding("restarted", NOTE, text, "send a request, and ask again.")
    for row in rows[:_ROWS]:
        yield from _kind(row)


def _kind(row: Mapping[str, Any]) -> Iterator[Finding]:
    model, window, trigger, fullest = row["model"], row["window"], row["trigger"], row["fullest"]
    actions: Counter[str] = Counter(row["actions"])
    known = f"{window:,} ({row['source']})" if window else "unknown"
    text = (
        f"{model} by {row['protocol']}: {_times(actions.total(), 'request')} to {row['upstream']}, strategy"
        f" {row['strategy']}, window {known}, at most {fullest:,} tokens used."
    )
    entry = _entry(model)
    if condensed := actions["condensed"] + actions["replayed"]:
        yield Finding("condensed", OK, f"{text} {condensed:,} went with a condensed history.")
    elif row["strategy"] == "off":
        remedy, lines = "let no request ask for `off`, and set a strategy:", [*entry, 'strategy = "mask+extract"']
        yield Finding("off", NOTE, f"{text} `off` condenses nothing.", remedy, lines)
    elif row["strategy"].startswith("observe:"):
        text += f" It only observes: {actions['would-condense']:,} would have been condensed."
        yield Finding("observe", NOTE, text, "leave `observe:` out of the strategy to condense.")
    elif trigger is None or (window is None and fullest < trigger):
        yield _window_unknown(model, text, trigger)
    elif fullest >= trigger:
        text += f" Condensing begins at {trigger:,}, but it could not, or waits."
        yield Finding("not-condensed", NOTE, text, f"see {_REASONS}; the log has each request's reason.")
    else:
        by = _TRIGGERS[row["trigger_by"]]
        text += f" Condensing begins at {trigger:,} ({by}), so there was nothing to do."
        yield Finding("below-marks", OK, text, f"nothing; or lower {by} to condense earlier.")
        agents = [_AGENTS[source] for source in row["sources"] if source in _AGENTS]
        if agents and (window or 0) >= _LARGE and row["economy"] != "auto":
            yield _recipe(row, " and ".join(agents), entry)


def _recipe(row: Mapping[str, Any], agents: str, entry: Sequence[str]) -> Finding:
    """How an agent that compacts by itself, in a large window, is condensed all the same."""
    text = (
        f"{agents} compacts by itself near the end of its window. {row['model']} has {row['window']:,} tokens, of which"
        f" {row['fullest']:,} were used, so the proxy rarely has anything to do."
    )
    if row["cheapest"]:
        trigger, saves = row["cheapest"]["trigger"], row["cheapest"]["saves"]
        text += f" Condensing at {trigger:,} would save {saves:.0%} of the prompts' cost."
    remedy = "condense where costs choose the moment: by --economy auto, or in the settings:"
    return Finding("recipe", NOTE, text, remedy, [*entry, 'economy = "auto"'])


def _failed(proxy: RunningProxy) -> Iterator[Finding]:
    """Each kind of failure, the most frequent first."""
    total = proxy.total
    if not (requests := total["requests"]):
        return
    for name, count in total.most_common():
        kind, _, what = name.partition("_")
        if kind not in {"status", "error"} or name == _LEFT:
            continue
        of = f"{count:,} of {_times(requests, 'request')} ({count / requests:.0%})"
        by = f"The upstream answered {what} to {of}." if kind == "status" else f"{of} failed here: {what}."
        fallback = f"look at the error in the client: {DOCUMENTS}/reference/http.md has those of the proxy."
        yield Finding(name, WRONG, by, _REMEDIES.get(name, fallback))
    for notice in notices(total, proxy.ready):
        if notice.name in _REMEDIES:
            yield Finding(notice.name, WRONG, notice.text, _REMEDIES[notice.name])


def _listed(total: Counter[str], prefix: str) -> str:
    found = [(name.removeprefix(prefix), count) for name, count in total.most_common() if name.startswith(prefix)]
    return ", ".join(f"{count:,} by {name}" if prefix == "protocol_" else f"{count:,} {name}" for name, count in found)


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


CHECKS: Mapping[str, Sequence[Callable[[Any], Iterator[Finding]]]] = {
    "check": (_kept, _tokenizers, _upstreams, _running, _model),
    "doctor": (state_of, _others, _table, hidden, _arrived, _kinds, _failed),
}
"""The checks of each command, in the order in which their findings are printed."""
