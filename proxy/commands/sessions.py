"""List, show, export, steer or delete the sessions of a running proxy."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from proxy.cli import USAGE
from proxy.commands.proxy_client import (
    HINT_404,
    HINT_TENANT,
    NOT_STORED,
    SHORT,
    actions_of,
    add_action,
    add_yes,
    confirm,
    list_sessions,
    moment,
    request_json,
    request_session,
    session_of,
    session_path,
    settle,
    table,
)
from proxy.conversations.totals import figures
from proxy.errors import CommandFailed
from proxy.quoting import one_line, printable
from proxy.values import json_or_none

SHOWN = 100  # characters of a message
WIDTH = 100
VOTES = "judge_votes"
COLUMNS = ("SESSION", "ID", "MODEL", "STRATEGY", "REQUESTS", "SAVED", "LAST USED")
CELLS = (SHORT, 13, 17, 13, 8, 11)  # characters of the first columns, so that a line has at most `WIDTH`
ID_WHOLE = 36  # characters of an id, as a UUID has
_ID = "the session as `list` prints it, or its id"


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = actions_of(command)
    listing = add_action(actions, "list", _list, "one line for each session, the newest first")
    show = add_action(actions, "show", _show, "one session: what the model reads now, condensations, messages", _ID)
    for action in (listing, show):
        action.add_argument("--json", action="store_true", help="the whole document")
    export = add_action(actions, "export", _export, "one session as JSON", _ID)
    export.add_argument("--file", metavar="FILE", help="where to write; by default standard output")
    export.add_argument("--memory", action="store_true", help="the array of its memory cards alone")
    revert = add_action(
        actions, "revert", _revert, "undo a condensation: the longer prompt is sent again while it fits", _ID
    )
    which = "its id as `show` prints it; by default the latest one that views apply"
    revert.add_argument("condensation", metavar="CONDENSATION", nargs="?", help=which)
    revert.add_argument("--undo", action="store_true", help="take a revert back; by default the latest one")
    text = "leave a line of the ledger, or a memory card, out from the next condensation on"
    drop = add_action(actions, "drop", _drop, text, _ID)
    drop.add_argument("line", metavar="LINE", help="its number, id or text as `show` prints it, or the id of a card")
    drop.add_argument("--now", action="store_true", help="at once: the prompt cache of the upstream misses once")
    text = "keep a message word for word in every later view, with the call or the results that belong to it"
    pin = add_action(actions, "pin", _pin, text, _ID)
    pin.add_argument("message", metavar="MESSAGE", help="its number as `show` prints it")
    unpin = add_action(actions, "unpin", _unpin, "remove a pin: the next condensation may replace the message", _ID)
    unpin.add_argument("message", metavar="MESSAGE", help="its number as `show` prints it, or the pin's id")
    for action in (pin, unpin):
        action.add_argument("--branch", metavar="BRANCH", default="main", help="its branch; main by default")
    delete = add_action(actions, "delete", _delete, "remove a session, or with --tenant alone all of a tenant")
    delete.add_argument("id", metavar="ID", nargs="?", help=_ID)
    add_yes(delete)


def _list(arguments: argparse.Namespace) -> None:
    rows = list_sessions(arguments)
    print(_json(rows) if arguments.json else "\n".join(_listed(rows["data"])))
    if rows["unreadable"]:
        keys = ", ".join(f"{row['tenant']}/{row['session']}" for row in rows["unreadable"])
        print(f"not readable: {keys}", file=sys.stderr)


def _show(arguments: argparse.Namespace) -> None:
    session = request_session(arguments)
    print(_json(session) if arguments.json else "\n".join(lines_of(session)))


def _json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2)


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
    asks, hint = settle(arguments), HINT_404
    names: tuple[str, ...]
    # An empty id does not count as missing: it usually comes from a shell variable that is not set.
    if arguments.id is not None:
        names, what = session_of(arguments), f"session {printable(arguments.id)}"
    else:
        rows = list_sessions(arguments)
        count = len(rows["data"]) + len(rows["unreadable"])
        names, what = (arguments.tenant,), f"{count} sessions of tenant {printable(arguments.tenant)}"
        asks, hint = asks or count > 1, HINT_TENANT
    if asks:
        confirm(arguments, f"delete {what}{f' at {arguments.url}' if arguments.url else ''}")
    answer = request_json(arguments, session_path(*names), method="DELETE", hint_404=hint)
    counts = [(answer["sessions"], "session")]
    if "bytes" in answer:
        counts += [(answer["memory_cards"], "memory card"), (answer["blocks"], "message block")]
        counts += [(answer["bytes"], "byte")]
    print("deleted", ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts))


def _revert(arguments: argparse.Namespace) -> None:
    name, state, done = arguments.condensation, "standing", "reverted"
    if arguments.undo:
        state, done = "reverted", "restored"
    if name is None:
        records = request_session(arguments)["condensations"]
        found = [record["id"] for record in records if record[state]]
        if not found:
            print("no revert to take back" if arguments.undo else "no condensation to revert")
            return
        name = found[-1]
    method, hint = "DELETE" if arguments.undo else "POST", "no such condensation in this session"
    request_session(arguments, "condensations", name, "revert", method=method, hint_404=hint)
    print(f"{done} {name}")


def _drop(arguments: argparse.Namespace) -> None:
    rows = enumerate(request_session(arguments).get("ledger", ()), 1)
    names = ((row["id"], str(number), row["text"]) for number, row in rows)
    line = next((each[0] for each in names if arguments.line in each), arguments.line)
    query, hint = {"now": "true"} if arguments.now else {}, "its ledger has no such line, and its memory no such card"
    request_session(arguments, "ledger", line, method="DELETE", hint_404=hint, **query)
    print(f"dropped {line}, {'at once' if arguments.now else 'from the next condensation on'}")


def _pin(arguments: argparse.Namespace) -> None:
    if not arguments.message.isdecimal():
        raise CommandFailed(f"{arguments.message} is not the number of a message")
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


def _listed(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table; one for each tenant, under its digest, if there are several."""
    tenants = list(dict.fromkeys(row["tenant"] for row in rows))
    if len(tenants) < 2:
        yield from _fitted(rows)
        if not rows:
            yield f"None is stored. {NOT_STORED}."
        return
    for tenant in tenants:
        name = next(row.get("tenant_name") for row in rows if row["tenant"] == tenant)
        yield f"tenant {f'{name} ({tenant})' if name else tenant}"
        yield from _fitted([row for row in rows if row["tenant"] == tenant])


def _fitted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table whose ids are whole where a line has room for them."""
    whole = list(table([COLUMNS, *(_row(row, ID_WHOLE) for row in rows)]))
    return whole if max(map(len, whole)) <= WIDTH else list(table([COLUMNS, *(_row(row, CELLS[1]) for row in rows)]))


def _row(row: Mapping[str, Any], id_most: int) -> tuple[str, ...]:
    totals = row["totals"]
    name = "" if row["id"] == row["session"] else row["id"]
    texts = (row["session"], name, row["model"] or "", row["strategy"] or "")
    return (
        texts[0][:SHORT],
        *(printable(text, most, " ") for text, most in zip(texts[1:], (id_most, *CELLS[2:4]), strict=True)),
        *(
            _number(totals.get(name, 0), most)
            for name, most in zip(("requests", "saved_tokens"), CELLS[4:], strict=True)
        ),
        moment(row["last_used"])[5:-4],
    )


def _number(amount: int, most: int) -> str:
    return text if len(text := f"{amount:,}") <= most else f"{amount:.2e}"


def lines_of(session: Mapping[str, Any]) -> Iterator[str]:
    """A session in lines; the text of messages is cut, and has no control characters."""
    total = Counter(session["totals"])
    settings = ", ".join(f"{name} {json.dumps(value)}" for name, value in sorted(session["settings"].items()))
    yield from table(
        [
            *((name, session[name]) for name in ("session", "id", "tenant", "source")),
            *([("tenant name", session["tenant_name"])] if session.get("tenant_name") else []),
            ("parent", session["parent"] or "none"),
            ("created", moment(session["created_at"])),
            ("model", session["model"] or "not known"),
            ("strategy", session["context_strategy"] or "not known"),
            ("settings", settings or "none"),
            ("requests", f"{total['requests']:,}, of which {total['failed']:,} failed"),
            *list(figures(total, ""))[:3],
            ("economy", _economy(session.get("economy"))),
        ]
    )
    yield from _replacement_lines(session)
    if session.get("ledger"):
        yield ""
        yield "ledger, which `sessions drop` takes lines from:"
    for number, row in enumerate(session.get("ledger", ()), 1):
        yield f"  {number}  {row['id']}  {_cut(one_line(row['text']))}{' (dropped)' if row['dropped'] else ''}"
    if session["memory"]:
        yield ""
        yield f"facts: {len(session['memory'])}"
        yield from (f"  {card['type']}: {_cut(one_line(card['content']))}" for card in session["memory"])
    if session["condensations"]:
        yield ""
    for condensation in session["condensations"]:
        is_latest = condensation["id"] == session["latest_condensation"]
        yield from _wrapped(_condensation_line(condensation, is_latest=is_latest))
        for telemetry in condensation["metadata"].values():
            if isinstance(telemetry, Mapping):
                yield from _vote_lines(telemetry)
    yield from _judging_lines(session)
    for branch in session["branches"]:
        yield ""
        count = f"{branch['count']} message{'' if branch['count'] == 1 else 's'}"
        yield f"branch {branch['name']}: {count}, last used {moment(branch['last_used'])}"
        yield from _message_lines(branch["messages"], session, branch["name"])
    if session["appended"]:
        yield ""
        yield f"appended: {len(session['appended'])} messages"
        yield from _message_lines(session["appended"], session, "main")


def _replacement_lines(session: Mapping[str, Any]) -> Iterator[str]:
    """The whole text that stands in the place of older messages, by the latest condensation in use."""
    in_use = [record for record in session["condensations"] if record["standing"] and not record.get("reverted")]
    if not in_use:
        return
    yield ""
    yield f"instead of the first {in_use[-1]['covered']} messages, the model reads:"
    for piece in in_use[-1]["pieces"]:
        if isinstance(piece, list):
            first, last = piece[0], piece[1] - 1
            yield f"  [{f'message {first}' if first == last else f'messages {first} to {last}'}, word for word]"
        else:
            for line in _words(json_or_none(piece["raw"].encode())).splitlines():
                yield from wrap(one_line(line), WIDTH, initial_indent="  ", subsequent_indent="  ")
    kept = [range(*piece) for piece in in_use[-1]["pieces"] if isinstance(piece, list)]
    for pin in session.get("pins", ()):
        number = pin["message"]
        is_back = pin["fits"] and number < in_use[-1]["covered"] and not any(number in each for each in kept)
        if is_back:
            yield f"  [message {number} of branch {pin['branch']}, pinned, word for word]"


def _words(value: Any) -> str:
    """What a message or an item of any protocol says, its calls included; the type of what says nothing in words."""
    if isinstance(value, list):
        return "\n".join(filter(None, map(_words, value)))
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else ""
    call = value.get("function", value)
    given = call.get("arguments", call.get("input"))
    parts = [_words(value.get(name)) for name in ("summary", "thinking", "content", "text", "output", "tool_calls")]
    if given is not None:
        parts.append(f"{call.get('name')} {given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}")
    is_part = "role" not in value and value.get("type") not in (None, "reasoning")
    return "\n".join(filter(None, parts)) or (f"[{value['type']}]" if is_part else "")


def _economy(advice: Mapping[str, Any] | None) -> str:
    """What `economy = "auto"` does, or would do, for a session."""
    if not advice:
        return "nothing to save"
    to = f" to {advice['target']:,}" if "target" in advice else ""  # older stored sessions have none
    does = "auto condenses" if advice["mode"] == "auto" else "auto would condense"
    return f"{does} at {advice['trigger']:,} tokens{to}, {advice['saves']:.0%} cheaper than at the marks"


def _condensation_line(record: Mapping[str, Any], *, is_latest: bool) -> str:
    by_rules = f", record by rules: {record['fallback_reason']}" if record.get("fallback_reason") else ""
    return (
        f"condensation {record['id']}{' (latest)' if is_latest else ''}: {_state(record)}, {record['strategy']} by"
        f" {record['trigger']}{by_rules}, stands for {record.get('stands_for', record['covered'])} messages,"
        f" {record['tokens_before']:,} -> {record['tokens_after']:,} tokens, {record['rescued']:,} of"
        f" {record['requests']:,} requests rescued, {record['saved_tokens']:,} tokens saved,"
        f" {record['own_tokens']:,} of own calls, {moment(record['created_at'])}"
    )


def _state(record: Mapping[str, Any]) -> str:
    if record.get("reverted"):
        return "reverted"
    return "used" if record["standing"] else "prepared, not yet used"


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
    """Why the judges were last not asked, every verdict with its votes, and the last failed try."""
    if skipped := session["judging"].get("last_skip_reason"):
        yield ""
        yield from _wrapped(f"judges not asked: {one_line(str(skipped))}")
    for verdict in session["verdicts"]:
        judged = f"{verdict['count']} messages of {verdict['tokens']:,} tokens"
        yield f"{_verdict_words(verdict)} on {judged}, {moment(verdict['at'])}"
        yield from _vote_lines(verdict["metadata"])
    if failed := session.get("failed_try"):
        wanted = " after a judge's YES" if failed["judged"] else ""
        yield from _wrapped(
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
        who = str(message.get("role") or message.get("type")).replace("_", " ")
        said = f'"{one_line(_words(message))}"'
        yield f"  {number}{pinned}  {_cut(who)}: {_cut(said)}"


def _cut(text: str) -> str:
    more = len(text) - SHOWN
    return printable(text, SHOWN, " ") + (f" ({more:,} more characters)" if more > 0 else "")
