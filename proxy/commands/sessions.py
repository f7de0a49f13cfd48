"""List, show, export, steer or delete the sessions of a running proxy."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from proxy.cli import USAGE
from proxy.commands.proxy_client import (
    HINT_TENANT,
    actions_of,
    add_action,
    list_sessions,
    moment,
    request_json,
    request_session,
    session_path,
    table,
)
from proxy.errors import CommandFailed
from proxy.quoting import one_line, printable

SHOWN = 100  # characters of a message
WIDTH = 120
VOTES = "judge_votes"
COLUMNS = ("TENANT", "SESSION", "ID", "SOURCE", "BRANCHES", "CONDENSED", "REQUESTS", "TOKENS", "FORWARDED", "CREATED")
_ID = "the session as `list` prints it, or its id"


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = actions_of(command)
    add_action(actions, "list", _list, "one line for each session, the newest first")
    add_action(actions, "show", _show, "one session: branches, condensations, messages", _ID)
    export = add_action(actions, "export", _export, "one session as JSON", _ID)
    export.add_argument("--file", metavar="FILE", help="where to write; by default standard output")
    export.add_argument("--memory", action="store_true", help="the array of its memory cards alone")
    revert = add_action(
        actions, "revert", _revert, "take a condensation back: the longer view returns while it fits", _ID
    )
    which = "its id as `show` prints it; by default the latest one that views apply"
    revert.add_argument("condensation", metavar="CONDENSATION", nargs="?", help=which)
    text = "keep a message word for word in every later view, with the call or the results that belong to it"
    pin = add_action(actions, "pin", _pin, text, _ID)
    pin.add_argument("message", metavar="MESSAGE", help="its number as `show` prints it")
    unpin = add_action(actions, "unpin", _unpin, "take a pin back: the message goes with the next condensation", _ID)
    unpin.add_argument("message", metavar="MESSAGE", help="its number as `show` prints it, or the pin's id")
    for action in (pin, unpin):
        action.add_argument("--branch", metavar="BRANCH", default="main", help="its branch; main by default")
    delete = add_action(actions, "delete", _delete, "remove a session, or with --tenant alone all of a tenant")
    delete.add_argument("id", metavar="ID", nargs="?", help=_ID)


def _list(arguments: argparse.Namespace) -> None:
    rows = list_sessions(arguments)
    print("\n".join(table([COLUMNS, *map(_row, rows["data"])])))
    if rows["unreadable"]:
        keys = ", ".join(f"{row['tenant']}/{row['session']}" for row in rows["unreadable"])
        print(f"not readable: {keys}", file=sys.stderr)


def _show(arguments: argparse.Namespace) -> None:
    print("\n".join(lines_of(request_session(arguments))))


def _export(arguments: argparse.Namespace) -> None:
    document = request_session(arguments, *(["memory", "export"] if arguments.memory else []))
    text = json.dumps(document, indent=2) + "\n"
    if arguments.file is None:
        sys.stdout.write(text)
        return
    # The file holds text of conversations, so only its owner may read it, like the store.
    file = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(text)


def _delete(arguments: argparse.Namespace) -> None:
    if not (arguments.id or arguments.tenant):
        raise CommandFailed("name a session, or all of a tenant with --tenant", USAGE)
    # An empty id does not count as missing: it usually comes from a shell variable that is not set.
    if arguments.id is not None:
        answer = request_session(arguments, method="DELETE")
    else:
        answer = request_json(arguments, session_path(arguments.tenant), method="DELETE", hint_404=HINT_TENANT)
    print(f"deleted {answer['sessions']} session{'' if answer['sessions'] == 1 else 's'}")


def _revert(arguments: argparse.Namespace) -> None:
    name = arguments.condensation
    if name is None:
        records = request_session(arguments)["condensations"]
        standing = [record["id"] for record in records if record["standing"]]
        if not standing:
            print("no condensation to revert")
            return
        name = standing[-1]
    hint = "no such condensation in this session"
    request_session(arguments, "condensations", name, "revert", method="POST", hint_404=hint)
    print(f"reverted {name}")


def _pin(arguments: argparse.Namespace) -> None:
    if not arguments.message.isdecimal():
        raise CommandFailed(f"{arguments.message} is no number of a message")
    message = {"message": int(arguments.message), "branch": arguments.branch}
    hint = f"the session has no branch {arguments.branch}"
    pin = request_session(arguments, "pins", method="POST", payload=message, hint_404=hint)
    print(f"pinned message {pin['message']} of branch {pin['branch']} as {pin['id']}")


def _unpin(arguments: argparse.Namespace) -> None:
    name = arguments.message
    if name.isdecimal():
        place = (int(name), arguments.branch)
        pins = request_session(arguments)["pins"]
        name = next((pin["id"] for pin in pins if (pin["message"], pin["branch"]) == place), None)
        if name is None:
            print(f"message {place[0]} of branch {arguments.branch} is not pinned")
            return
    request_session(arguments, "pins", name, method="DELETE", hint_404="no such pin in this session")
    print(f"unpinned {name}")


# Printing


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    totals = row["totals"]
    return (
        *(row[name] for name in ("tenant", "session", "id", "source")),
        str(row["branches"]),
        str(row["condensations"]),
        *(f"{totals.get(name, 0):,}" for name in ("requests", "client_tokens", "forwarded_tokens")),
        moment(row["created_at"]),
    )


def lines_of(session: Mapping[str, Any]) -> Iterator[str]:
    """A session in lines; the text of messages is cut, and has no control characters."""
    totals = ", ".join(f"{name} {count:,}" for name, count in sorted(session["totals"].items()))
    settings = ", ".join(f"{name} {json.dumps(value)}" for name, value in sorted(session["settings"].items()))
    yield from table(
        [
            *((name, session[name]) for name in ("session", "id", "tenant", "source")),
            ("parent", session["parent"] or "none"),
            ("created", moment(session["created_at"])),
            ("strategy", session["context_strategy"] or "not known"),
            ("settings", settings or "none"),
            ("totals", totals or "none"),
            ("economy", _economy(session.get("economy"))),
        ]
    )
    for condensation in session["condensations"]:
        yield from _condensation_lines(condensation, is_latest=condensation["id"] == session["latest_condensation"])
    yield from _judging_lines(session)
    for branch in session["branches"]:
        yield ""
        yield f"branch {branch['name']}: {branch['count']} messages, last used {moment(branch['last_used'])}"
        yield from _message_lines(branch["messages"], session, branch["name"])
    if session["appended"]:
        yield ""
        yield f"appended: {len(session['appended'])} messages"
        yield from _message_lines(session["appended"], session, "main")


def _economy(advice: Mapping[str, Any] | None) -> str:
    """What `economy = "auto"` does, or would do, for a session."""
    if not advice:
        return "nothing to save"
    to = f" to {advice['target']:,}" if "target" in advice else ""  # older stored sessions have none
    does = "auto condenses" if advice["mode"] == "auto" else "auto would condense"
    return f"{does} at {advice['trigger']:,} tokens{to}, {advice['saves']:.0%} cheaper than at the marks"


def _condensation_lines(record: Mapping[str, Any], *, is_latest: bool) -> Iterator[str]:
    duration = record["metadata"].get("compressionDuration")
    took = f", took {duration:,} ms" if duration is not None else ""
    yield ""
    yield from _wrapped(
        f"condensation {record['id']}{' (latest)' if is_latest else ''}: {record['strategy']} by {record['trigger']},"
        f" {record['covered']} messages, {record['tokens_before']:,} -> {record['tokens_after']:,} tokens of"
        f" {record['window']:,}, {_state(record)}, {moment(record['created_at'])}"
    )
    yield f"  saved {record['saved_tokens']:,} tokens so far, cost {record['own_tokens']:,} tokens{took}"
    for piece in record["pieces"]:
        if isinstance(piece, list):
            yield f"  kept {piece[0]} to {piece[1] - 1}"
        else:
            yield f"  {piece['kind']}: {_cut(piece['raw'])}"
    for stage, telemetry in record["metadata"].items():
        if isinstance(telemetry, Mapping) and telemetry:
            yield from _telemetry_lines(f"  {stage}: ", telemetry)


def _state(record: Mapping[str, Any]) -> str:
    if record.get("reverted"):
        return "reverted"
    return "standing" if record["standing"] else "prepared"


def _telemetry_lines(title: str, telemetry: Mapping[str, Any]) -> Iterator[str]:
    """The telemetry of a strategy or its judges: all members, and each vote with its reasoning."""
    members = (
        f"{name} {_cut(json.dumps(value, ensure_ascii=False))}" for name, value in telemetry.items() if name != VOTES
    )
    yield from _wrapped(f"{title}{', '.join(members)}")
    yield from _vote_lines(telemetry)


def _wrapped(text: str) -> list[str]:
    indent = text[: len(text) - len(text.lstrip())] + "    "
    return wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _vote_lines(telemetry: Mapping[str, Any]) -> Iterator[str]:
    for vote in telemetry.get(VOTES, ()):
        parsed = "parsed" if vote.get("parsed_ok") else "not parsed"
        problem = f", {vote['error_type']}" if vote.get("error_type") else ""
        reasoning = f": {one_line(str(vote['reasoning']))}" if vote.get("reasoning") else ""
        yield from _wrapped(f"    vote {vote.get('decision') or 'none'}, {parsed}{problem}{reasoning}")


def _judging_lines(session: Mapping[str, Any]) -> Iterator[str]:
    """The last state of judging, every verdict with its votes, and the last failed try."""
    if session["judging"]:
        yield ""
        yield from _telemetry_lines("judging: ", session["judging"])
    for verdict in session["verdicts"]:
        judged = f"{verdict['count']} messages of {verdict['tokens']:,} tokens"
        yield f"{_verdict_words(verdict)} on {judged}, {moment(verdict['at'])}"
        yield from _vote_lines(verdict["metadata"])
    if failed := session["failed_try"]:
        wanted = " after a judge's YES" if failed["judged"] else ""
        yield (
            f"no record{wanted} on branch {failed['branch']}: {failed['reason']}, with {failed['tokens']:,} tokens,"
            f" {moment(failed['at'])}"
        )


def _verdict_words(verdict: Mapping[str, Any]) -> str:
    if verdict["yes"] is None:
        return f"no verdict (0 of {len(verdict['metadata'].get(VOTES, ()))} votes readable)"
    return f"verdict {'YES' if verdict['yes'] else 'NO'}"


def _message_lines(messages: Sequence[Any], session: Mapping[str, Any], branch: str) -> Iterator[str]:
    pins = {pin["message"]: pin for pin in session.get("pins", ()) if pin["branch"] == branch}
    for number, message in enumerate(messages):
        pin = pins.get(number)
        pinned = f" (pinned as {pin['id']}{'' if pin['fits'] else ', does not fit'})" if pin else ""
        content = message.get("content") or message.get("tool_calls")
        line = f"{_cut(str(message.get('role')))}: {_cut(json.dumps(content, ensure_ascii=False))}"
        yield f"  {number}{pinned}  {line}"


def _cut(text: str) -> str:
    more = len(text) - SHOWN
    return printable(text, SHOWN, " ") + (f" ({more:,} more characters)" if more > 0 else "")
