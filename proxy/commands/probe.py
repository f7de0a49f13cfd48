"""Commands that ask a running proxy one thing: `healthcheck`, `status` and `dashboard`."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from proxy.commands.proxy_client import URL_HELP, Reply, ask, moment, token_for
from proxy.errors import CommandFailed, SettingsError
from proxy.totals import notices, sentence
from proxy.values import json_or_none

_EVERY = 1.0  # seconds between two prints of `status --watch`
_HOURS = 24  # of the sums that `status` tells
_HIDDEN = "only with admin.token"
_CLEAR = "\x1b[H\x1b[2J"  # clears a terminal


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", metavar="URL", help=URL_HELP)
    if command.prog.endswith(" status"):
        command.add_argument("--watch", action="store_true", help="print it every second until interrupted")
        command.add_argument("--json", action="store_true", help="the documents that the sentences are made of")
    if command.prog.endswith(" dashboard"):
        command.add_argument("--no-open", action="store_true", help="print the address only")


def healthcheck(arguments: argparse.Namespace) -> None:
    answer = ask(arguments.url, "/livez")
    if answer.status != 200:
        raise CommandFailed(answer.problem)


def status(arguments: argparse.Namespace) -> int:
    """Prints the state in a few sentences, or the documents that they are made of; 1 if the proxy is not ready."""
    while True:
        state = _state(arguments.url)
        if arguments.json:
            text = json.dumps(state._asdict(), ensure_ascii=False, indent=None if arguments.watch else 2)
        else:
            text = "\n".join((*status_lines(state), *known_lines(state.known)))
        print(f"{_CLEAR if arguments.watch and sys.stdout.isatty() else ''}{text}", flush=True)
        if not arguments.watch:
            return int(state.ready["status"] != "ok")
        time.sleep(_EVERY)


class State(NamedTuple):
    """What a proxy says of itself: `/readyz`, and what the admin token opens, None without it."""

    address: str
    ready: Mapping[str, Any]
    sums: Mapping[str, Any] | None  # of the last 24 hours
    known: Mapping[str, Any] | None


def _state(url: str | None) -> State:
    """Raises `CommandFailed` if no proxy answers at the address."""
    token = _token(url)
    reply = ask(url, "/readyz", token=token)
    ready = json_or_none(reply.body)
    if not isinstance(ready, dict) or "tokenizers" not in ready:
        raise CommandFailed(reply.problem if reply.status != 200 else f"{reply.base} is not a condenser")
    sums = opened(ask(reply.base, f"/_condenser/sums?hours={_HOURS}", token=token), "sums")
    return State(reply.base, ready, sums, known_at(reply.base, token))


def known_at(base: str, token: str | None) -> Mapping[str, Any] | None:
    """What a proxy knows of each model of its upstream; only the admin token gives access."""
    return opened(ask(base, "/_condenser/known", token=token), "known")


def opened(reply: Reply, kind: str) -> Mapping[str, Any] | None:
    """The document of this kind in an answer of the admin API; None if it is another one, or a refusal."""
    document = json_or_none(reply.body)
    return document if isinstance(document, dict) and document.get("object") == kind else None


def status_lines(state: State) -> Iterator[str]:
    """The state in sentences, one in each line."""
    ready = state.ready
    is_ok = ready["status"] == "ok"
    yield (
        f"Condenser {ready['version']} at {state.address} is {'ready' if is_ok else ready['status']};"
        f" its strategy is {ready['strategy']}."
    )
    hidden = f"The upstream is shown {_HIDDEN}."
    yield f"It sends requests to {ready['upstream']}." if "upstream" in ready else hidden
    place, works = ready["store"].get("url", "a store"), ready["store"]["state"]
    yield f"Sessions are kept in {place}, which {'works' if works == 'ok' else f'does not work ({works})'}."
    total: Counter[str] = Counter()
    if state.sums is None:
        yield f"Requests, savings and costs are shown {_HIDDEN}."
    else:
        for row in state.sums["data"]:
            total.update({name: amount for name, amount in row.items() if name != "at"})
        yield f"The last {_HOURS} hours: {sentence(total, state.sums['currency'])}"
        if total["requests"]:
            yield (
                f"It saved {total['saved_tokens']:,} tokens on requests that would have fitted anyway; its own calls"
                f" took {total['own_tokens']:,} tokens, and {total['reread_tokens']:,} were read anew by the upstream."
            )
    found = [notice.text for notice in notices(total, ready)]
    if found:
        yield f"Needs attention: {' '.join(found)}"
    elif state.sums is not None:
        yield "Nothing needs attention."


def _token(url: str | None) -> str | None:
    try:
        return token_for(url)
    except SettingsError:
        return None  # the settings here need not be those of the proxy


def known_lines(known: Mapping[str, Any] | None) -> list[str]:
    """A line for each model of the upstream: what the proxy knows of it, and the source."""
    if known is None:
        return [f"  known       {_HIDDEN}"]
    return [f"  known       {_known_line(row)}" for row in known["data"]] or ["  known       nothing yet"]


def _known_line(row: Mapping[str, Any]) -> str:
    tenant = f" (tenant {row['tenant']}…)" if row["tenant"] else ""
    window = f"{row['window']:,}" if row["window"] else "unknown"
    more = [f"window {window}" + (f" ({row['source']})" if row["window"] else "")]
    more += [f"until {moment(row['until'])}"] if row["until"] else []
    more += [f"{name} = {str(value).lower()}" for name, value in row["forms"].items()]
    until = row["refuses_tools_until"]
    more += [f"refuses tools until {moment(until)}"] if until else []
    return f"{row['model']}{tenant}: {', '.join(more)}"


def dashboard(arguments: argparse.Namespace) -> None:
    """Prints the address, with a code that signs in once if the token is known here, and opens it."""
    import webbrowser

    from proxy.settings.token import new_code

    token = _token(arguments.url)
    page = ask(arguments.url, "/_condenser/known", token=token)
    if page.status not in {200, 401}:
        closed = f"{page.base} has no dashboard: set admin.token"
        raise CommandFailed(closed if page.status == 404 else page.problem)
    address, signs_in = f"{page.base.rstrip('/')}/_condenser/", token is not None and page.status == 200
    if token is not None and signs_in:
        address += f"?code={new_code(token.encode(), time.time(), secrets.token_urlsafe(16))}"
    print(address)
    print("it signs you in once" if signs_in else "sign in with admin.token of the proxy's settings")
    if not arguments.no_open:
        webbrowser.open(address)
