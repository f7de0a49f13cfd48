"""Commands that ask a running proxy about itself: `healthcheck`, `status`, `doctor` and `dashboard`."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Iterator

from proxy.commands.checks import findings, hidden, known_of, report, state_of
from proxy.commands.proxy_client import HOURS, TOKEN_HELP, URL_HELP, RunningProxy, ask, proxy_at
from proxy.conversations.totals import NONE, notices, sentence
from proxy.errors import CommandFailed

_EVERY = 1.0  # seconds between two prints of `status --watch`
_CLEAR = "\x1b[H\x1b[2J"  # clears a terminal


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", metavar="URL", help=URL_HELP)
    if command.prog.endswith(" status"):
        command.add_argument("--watch", action="store_true", help="print it every second until interrupted")
        command.add_argument("--json", action="store_true", help="the documents that the sentences are made of")
    if command.prog.endswith(" doctor"):
        command.add_argument("--token", help=TOKEN_HELP)
        command.add_argument("--hours", metavar="N", type=int, default=HOURS, help=f"how far to look back ({HOURS})")
        command.add_argument("--json", action="store_true", help="the findings as data")
    if command.prog.endswith(" dashboard"):
        command.add_argument("--no-open", action="store_true", help="print the address only")


def healthcheck(arguments: argparse.Namespace) -> None:
    answer = ask(arguments.url, "/livez")
    if answer.status != 200:
        raise CommandFailed(answer.problem)


def status(arguments: argparse.Namespace) -> int:
    """Prints the state in a few sentences, or the documents that they are made of; 1 if the proxy is not ready."""
    while True:
        proxy = proxy_at(arguments.url)
        if not proxy.ready:
            raise CommandFailed(proxy.problem)
        if arguments.json:
            sums = proxy.sums and {"hours": proxy.hours, "total": {**NONE, **proxy.total}, **proxy.sums}
            document = {"address": proxy.base, "ready": proxy.ready, "sums": sums, "known": proxy.known}
            text = json.dumps(document, ensure_ascii=False, indent=None if arguments.watch else 2)
        else:
            text = "\n".join(_status_lines(proxy))
        print(f"{_CLEAR if arguments.watch and sys.stdout.isatty() else ''}{text}", flush=True)
        if not arguments.watch:
            return int(proxy.ready["status"] != "ok")
        time.sleep(_EVERY)


def _status_lines(proxy: RunningProxy) -> Iterator[str]:
    """The state in sentences, one in each line."""
    yield from (finding.text for check in (state_of, hidden) for finding in check(proxy))
    total = proxy.total
    if proxy.sums is not None:
        yield f"The last {proxy.hours} hours: {sentence(total, proxy.sums['currency'])}"
        if total["requests"]:
            yield (
                f"It saved {total['saved_tokens']:,} tokens on requests that would have fitted anyway; its own calls"
                f" took {total['own_tokens']:,} tokens, and {total['reread_tokens']:,} were read anew by the upstream."
            )
    found = [notice.text for notice in notices(total, proxy.ready)]
    if found:
        yield f"Needs attention: {' '.join(found)}"
    elif proxy.sums is not None:
        yield "Nothing needs attention."
    yield from (finding.text for finding in known_of(proxy))


def doctor(arguments: argparse.Namespace) -> int:
    """Says what the proxy has counted; returns 1 if there is something to mend, such as that no request came."""
    proxy = proxy_at(arguments.url, arguments.token, arguments.hours)
    found = findings("doctor", proxy)
    arrivals = (proxy.arrivals or {}).get("data", [])
    return report("doctor", found, is_json=arguments.json, total={**NONE, **proxy.total}, arrivals=arrivals)


def dashboard(arguments: argparse.Namespace) -> None:
    """Prints the address, with a code that signs in once if the token is known here, and opens it."""
    import webbrowser

    from proxy.settings.token import new_code

    proxy = proxy_at(arguments.url)
    if not proxy.ready or proxy.status == 404:
        raise CommandFailed(proxy.problem or f"{proxy.base} has no dashboard: set admin.token")
    address, token = f"{proxy.base.rstrip('/')}/_condenser/", proxy.token if proxy.known is not None else None
    if token is not None:
        address += f"?code={new_code(token.encode(), time.time(), secrets.token_urlsafe(16))}"
    print(address)
    print("it signs you in once" if token is not None else "sign in with admin.token of the proxy's settings")
    if not arguments.no_open:
        webbrowser.open(address)
