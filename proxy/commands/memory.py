"""List, search, add, import or forget memory cards of a session, in a running proxy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.cli import USAGE
from proxy.commands.proxy_client import actions_of, add_action, add_yes, confirm, request_session, settle, table
from proxy.conversations.session import MAIN
from proxy.errors import CommandFailed
from proxy.quoting import one_line, printable
from strategies.core.cards import TYPES, from_json, to_json

COLUMNS = ("CARD", "TYPE", "ROLE", "SOURCE", "CREATED", "CONDENSATION", "MESSAGES", "TAGS", "CONTENT")
HINT_404 = "there is no such card, session or branch"
_ID = "the session as `sessions list` prints it, or its id, or scope:NAME"


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = actions_of(command)
    listing = add_action(actions, "list", _list, "the cards of a session, oldest first", _ID)
    listing.add_argument("--json", action="store_true", help="as the JSON array that an export has as `memory`")
    text = "a session's cards and messages that match a query, best first"
    search = add_action(actions, "search", _search, text, _ID)
    search.add_argument("query", metavar="QUERY", help="words to look for")
    search.add_argument("--branch", default=MAIN, help=f"whose messages and cards are searched; by default {MAIN}")
    search.add_argument("--top-k", default="5", metavar="N", help="the most hits, by default 5")
    search.add_argument("--json", action="store_true", help="as a JSON array")
    add = add_action(actions, "add", _add, "write a card", _ID)
    add.add_argument("content", metavar="CONTENT", help="one sentence")
    add.add_argument("--type", choices=TYPES, default="fact", help="by default fact")
    add.add_argument("--tag", action="append", default=[], help="may be given several times")
    text = "add the cards of a JSON file, as `sessions export --memory` writes it"
    importing = add_action(actions, "import", _import, text, _ID)
    importing.add_argument("file", metavar="FILE", help="a JSON array of cards; - for standard input")
    forget = add_action(actions, "forget", _forget, "remove a card, or with --all every one", _ID)
    forget.add_argument("card", metavar="CARD", nargs="?", help="the card as `list` prints it")
    forget.add_argument("--all", action="store_true", help="all cards")
    add_yes(forget)


def _list(arguments: argparse.Namespace) -> None:
    cards = _request(arguments)["data"]
    if arguments.json:
        print(json.dumps(to_json(from_json(cards)), ensure_ascii=False, indent=1))
    else:
        print("\n".join(table([COLUMNS, *map(_row, cards)])))


def _search(arguments: argparse.Namespace) -> None:
    query = {"query": arguments.query, "branch": arguments.branch, "top_k": arguments.top_k}
    hits = _request(arguments, "search", **query)["data"]
    if arguments.json:
        print(json.dumps(hits, ensure_ascii=False, indent=1))
        return
    for hit in hits:
        print("\n".join(_hit_lines(hit)))


def _add(arguments: argparse.Namespace) -> None:
    written = {"content": arguments.content, "type": arguments.type, "tags": arguments.tag}
    print(_request(arguments, method="POST", payload=written)["id"])


def _import(arguments: argparse.Namespace) -> None:
    try:
        cards = json.loads(sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text("utf-8"))
    except (ValueError, RecursionError):
        raise CommandFailed(f"{arguments.file} is not JSON") from None
    done = _request(arguments, "import", method="POST", payload=cards)
    print(f"added {done['added']} of {done['added'] + done['known']} cards, {done['known']} were there already")


def _forget(arguments: argparse.Namespace) -> None:
    if bool(arguments.card) is arguments.all:
        raise CommandFailed("name a card, or all of them with --all", USAGE)
    if settle(arguments):
        what = "all cards" if arguments.all else f"card {printable(arguments.card)}"
        confirm(arguments, f"forget {what} of {printable(arguments.id)} at {arguments.url}")
    forgotten = _request(arguments, *([] if arguments.all else [arguments.card]), method="DELETE")["cards"]
    print(f"forgot {forgotten} card{'' if forgotten == 1 else 's'}")


def _request(arguments: argparse.Namespace, *names: str, **how: Any) -> Any:
    """The answer about the memory of the session; `how` is passed to `request_session`."""
    return request_session(arguments, "memory", *names, hint_404=HINT_404, **how)


def _row(card: Mapping[str, Any]) -> Sequence[str]:
    cells = (card["type"], card["role"], card["source"], card["created_at"], card["condensation"])
    return tuple(map(one_line, (card["id"], *cells, _messages(card), ",".join(card["tags"]), card["content"])))


def _messages(card: Mapping[str, Any]) -> str:
    """The positions of a card's messages, from 0; if unknown, of all messages that its condensation covers."""
    if card["places"]:
        return ",".join(map(str, card["places"]))
    return f"0-{card['covered'] - 1}" if card["covered"] else ""


def _hit_lines(hit: Mapping[str, Any]) -> Iterator[str]:
    if hit["object"] == "card":
        yield f"card {hit['id']}, {hit['type']}, from {hit['role']}, score {hit['score']}"
    else:
        part = f" part {hit['part'] + 1} of {hit['parts']}" if hit["parts"] > 1 else ""
        yield f"message {hit['place']}{part}, {hit['role']}, score {hit['score']}"
    yield from (f"  {one_line(line)}" for line in hit["text"].splitlines())
