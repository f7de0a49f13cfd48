"""Say whether requests of a client arrive at a running proxy, and why nothing was condensed, each with what to do.

It says what the proxy has counted. The exit status is 1 if there is something to mend: no proxy, no request, failed
requests, or a store that does not work.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any, NamedTuple

from proxy.commands.probe import opened
from proxy.commands.proxy_client import URL_HELP, ask, moment, token_for
from proxy.commands.running import living
from proxy.values import json_or_none

OK, NOTE, WRONG = "ok", "note", "wrong"
_HOURS, _COLUMNS, _ROWS = 24, 100, 12
_WRAP = "condenser wrap -- claude"
_LARGE = 100_000  # tokens of a window that an agent rarely fills up to the trigger
_SMALLER = 60_000  # tokens of the window that is proposed instead
_AGENTS = {"x-claude-code-session-id": "Claude Code", "thread-id": "Codex", "x-opencode-session": "opencode"}
"""Agents that compact by themselves, by the header that names their sessions."""
_NO_FAULTS = {"status_499", "error_upgrade_refused"}  # the client left; or it tried a web socket first, as Codex does
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


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", metavar="URL", help=URL_HELP)
    command.add_argument("--token", help="by default admin.token of the settings, or that of the proxy here")
    command.add_argument("--hours", metavar="N", type=int, default=_HOURS, help=f"how far to look back ({_HOURS})")
    command.add_argument("--json", action="store_true", help="the findings as data")


def run(arguments: argparse.Namespace) -> int:
    found = sorted(_findings(arguments), key=lambda each: each.name != "recipe")  # that one stands first
    wrong = sum(each.level == WRONG for each in found)
    if arguments.json:
        document = {"object": "doctor", "ok": not wrong, "findings": [each._asdict() for each in found]}
        print(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        for each in found:
            print("\n".join(_printed(each)), end="\n\n")
        print(f"{_times(wrong, 'thing')} to mend." if wrong else "Nothing is wrong.")
    return int(wrong > 0)


def _printed(finding: Finding) -> Iterator[str]:
    space = " " * 7
    for begin, text in ((finding.level.ljust(7), finding.text), (f"{space}Do this: ", finding.remedy)):
        if text:
            yield fill(begin + text, _COLUMNS, subsequent_indent=space, break_long_words=False, break_on_hyphens=False)
    yield from (f"{space}  {line}" for line in finding.lines)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    token = arguments.token if arguments.token is not None else token_for(arguments.url)
    reply = ask(arguments.url, "/readyz", token=token)
    ready = json_or_none(reply.body)
    others = [f"condenser doctor --url {note.url}" for note in living() if note.url != reply.base]
    if not isinstance(ready, dict) or "store" not in ready:
        text = reply.problem if reply.status != 200 else f"{reply.base} is not a condenser"
        start = "start one, or a program behind one of its own:", ["condenser serve --single-user", _WRAP]
        named = "name one that runs here:", others
        yield Finding("no-proxy", WRONG, f"{text[:1].upper()}{text[1:]}.", *(named if others else start))
        return
    upstream = f" and sends requests to {ready['upstream']}" if "upstream" in ready else ""
    text = f"Condenser {ready['version']} answers at {reply.base}{upstream}; its strategy is {ready['strategy']}."
    yield Finding("proxy", OK, text)
    if others:
        text = f"{len(others) + 1} proxies of yours run here. This is about the one at {reply.base}."
        yield Finding("several", NOTE, text, "ask about another one with", others)
    yield from _store(ready["store"])
    answer = ask(reply.base, f"/_condenser/sums?hours={arguments.hours}", token=token)
    sums = opened(answer, "sums")
    rows = opened(ask(reply.base, "/_condenser/arrivals", token=token), "arrivals")
    if sums is None or rows is None:
        yield _hidden(answer.status)
        return
    total: Counter[str] = Counter()
    for slot in sums["data"]:
        total.update({name: amount for name, amount in slot.items() if name != "at"})
    yield from _arrived(total, reply.base, arguments.hours)
    yield from _kinds(rows, total)
    yield from _failed(total)


def _store(store: Mapping[str, Any]) -> Iterator[Finding]:
    place, state = store.get("url", "the store"), store["state"]
    if state != "ok":
        text = f"Sessions cannot be kept in {place}: {state}. Requests are served without what is stored."
        yield Finding("store", WRONG, text, _REMEDIES.get(state, f"see docs/reference/reasons.md#{state}."))
    elif place == "memory://":
        text = "Sessions are kept in memory, so the proxy forgets them when it stops."
        yield Finding("memory-store", NOTE, text, "leave --store out, or name a file: --store sqlite:///condenser.db")


def _hidden(status: int) -> Finding:
    """Why what came in is not known, by the status of the answer."""
    if status == 503:
        return Finding("hidden", WRONG, "What came in is not known, because the store does not answer.")
    if status == 400:
        return Finding("hidden", WRONG, "What came in is known for eight days.", "give --hours from 1 to 192.")
    text = "What came in is shown only with the proxy's admin token. There is none here, or it is wrong."
    return Finding("hidden", WRONG, text, "give --token, or set CONDENSER_ADMIN__TOKEN to admin.token of the proxy.")


def _arrived(total: Counter[str], base: str, hours: int) -> Iterator[Finding]:
    """Whether requests came, by which protocol, and why some of them were not condensed."""
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
            text = f"{_times(total[name], 'request')} could not be condensed: {reason}, see docs/reference/reasons.md."
            yield Finding(reason, NOTE, text, _REMEDIES[name])


def _kinds(arrivals: Mapping[str, Any], total: Counter[str]) -> Iterator[Finding]:
    """What came of each model, and why nothing of that was condensed."""
    rows = sorted(arrivals["data"], key=lambda row: -sum(row["actions"].values()))
    if not rows and total["requests"]:
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
    entry = ["[[models]]", f"match = {json.dumps(model)}"]
    if condensed := actions["condensed"] + actions["replayed"]:
        yield Finding("condensed", OK, f"{text} {condensed:,} went with a condensed history.")
    elif row["strategy"] == "off":
        remedy, lines = "let no request ask for `off`, and set a strategy:", [*entry, 'strategy = "mask+extract"']
        yield Finding("off", NOTE, f"{text} `off` condenses nothing.", remedy, lines)
    elif row["strategy"].startswith("observe:"):
        text += f" It only observes: {actions['would-condense']:,} would have been condensed."
        yield Finding("observe", NOTE, text, "leave `observe:` out of the strategy to condense.")
    elif trigger is None:
        text += " Nothing is condensed until the upstream states its window or refuses a request for its length."
        remedy = "wait for that, or set the window that your server has, for instance:"
        yield Finding("window-unknown", NOTE, text, remedy, [*entry, "window = 32768"])
    elif fullest >= trigger:
        text += f" Condensing begins at {trigger:,}, but it could not, or waits."
        yield Finding("not-condensed", NOTE, text, "see docs/reference/reasons.md; the log has each request's reason.")
    else:
        text += f" Condensing begins at {trigger:,}, so there was nothing to do."
        yield Finding("below-marks", OK, text, "nothing; or lower `window` or marks.trigger to condense earlier.")
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
    remedy = (
        "condense earlier, by a smaller window, or where costs choose the moment, or both: in the settings, or by"
        " --window and CONDENSER_ECONOMY=auto. A single request that is longer than a window that you set is refused."
    )
    return Finding("recipe", NOTE, text, remedy, [*entry, f"window = {_SMALLER}", 'economy = "auto"'])


def _failed(total: Counter[str]) -> Iterator[Finding]:
    """Each kind of failure, the most frequent first."""
    requests = total["requests"]
    for name, count in total.most_common():
        kind, _, what = name.partition("_")
        if kind not in {"status", "error"} or name in _NO_FAULTS:
            continue
        of = f"{count:,} of {_times(requests, 'request')} ({count / requests:.0%})"
        by = f"The upstream answered {what} to {of}." if kind == "status" else f"{of} failed here: {what}."
        fallback = "look at the error in the client: docs/reference/http.md has those of the proxy."
        yield Finding(name, WRONG, by, _REMEDIES.get(name, fallback))
    if count := total["action_degraded"]:
        text = f"{_times(count, 'request')} lacked something, such as the stored session."
        yield Finding("degraded", WRONG, text, "docs/reference/reasons.md has the reasons above; the log has details.")
    if count := total["own_failed"]:
        text = f"{count:,} of {total['own_calls']:,} of the proxy's own model calls failed."
        remedy = "check the models of [summarizer] and [judge]; `condenser sessions show` has the errors."
        yield Finding("own-calls", WRONG, text, remedy)


def _listed(total: Counter[str], prefix: str) -> str:
    found = [(name.removeprefix(prefix), count) for name, count in total.most_common() if name.startswith(prefix)]
    return ", ".join(f"{count:,} by {name}" if prefix == "protocol_" else f"{count:,} {name}" for name, count in found)


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
