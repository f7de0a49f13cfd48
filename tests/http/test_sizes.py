"""Requests that are too large in another unit than tokens of the window are mended once, and their sessions bounded."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from strategies.dialects.parts import DOCUMENTS, note_of
from tests.http.test_pictures import ANSWERS
from tests.support import replies, wire
from tests.support.admin_api import SESSIONS, TOKEN, admin, place_of
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.stage import Stage, agent, chat, controls, count, proxy_with_upstream

Json = dict[str, Any]
Refuse = Callable[[Exchange], Reply | None]
NGINX = b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<center>nginx</center>\r\n</html>"


def by_rate(status: int) -> Refuse:
    def refuse(exchange: Exchange) -> Reply | None:
        used = count(exchange.json())
        said = f"Request too large for m on tokens per min (TPM): Limit 3000, Requested {used}."
        return replies.error(status, said, type="tokens", code="rate_limit_exceeded") if used > 3_000 else None

    return refuse


def by_tier(exchange: Exchange) -> Reply | None:
    said = "Extra usage is required for long context requests."
    return replies.error(429, said, type="rate_limit_error") if count(exchange.json()) > 3_400 else None


def by_number(exchange: Exchange) -> Reply | None:
    number = len(exchange.json()["messages"])
    said = "Invalid 'messages': array too long. Expected an array with maximum length 40, but got an array with length"
    return replies.error(400, f"{said} {number} instead.", code="array_above_max_length") if number > 40 else None


def by_bytes(exchange: Exchange) -> Reply | None:
    return replies.raw(NGINX, "text/html", status=413) if len(exchange.body) > 15_000 else None


def by_characters(exchange: Exchange) -> Reply | None:
    for at, message in enumerate(exchange.json()["messages"]):
        calls = [("tool_calls[0].function.arguments", each["function"]["arguments"]) for each in calls_of(message)]
        for where, text in (("content", message["content"]), *calls):
            if isinstance(text, str) and len(text) > 4_000:
                name = f"messages[{at}].{where}"
                said = (
                    f"Invalid '{name}': string too long. Expected a string with maximum length 4000, but got a string"
                )
                said = f"{said} with length {len(text)} instead."
                return replies.error(400, said, code="string_above_max_length", param=name)
    return None


def calls_of(message: Mapping[str, Any]) -> list[Json]:
    return message.get("tool_calls") or []


REFUSALS: dict[str, Refuse] = {
    "rate, 413": by_rate(413),
    "rate, 429": by_rate(429),
    "tier": by_tier,
    "messages": by_number,
    "bytes": by_bytes,
}


@contextmanager
def refusing(refuse: Refuse, **settings: Any) -> Iterator[Stage]:
    with proxy_with_upstream(**{"window": None, "strategy": "mask+extract", **settings}) as stage:
        stage.upstream.answer(refuse)
        yield stage


@pytest.mark.parametrize("unit", REFUSALS)
@pytest.mark.parametrize("strategy", ["mask+extract", "recent"])
def test_a_request_with_too_much_is_condensed_and_its_session_bounded(unit: str, strategy: str) -> None:
    with refusing(REFUSALS[unit], strategy=strategy) as stage:
        answer = stage.ask(agent(24), controls(session="s"))
        assert (answer.trigger, answer.action, len(stage.forwarded)) == ("overflow", "condensed", 2)
        for rounds in range(25, 30):
            stage.ask(agent(rounds), controls(session="s"))
        assert [each.status for each in stage.upstream.journal].count(200) == 6
        assert len(stage.forwarded) == 7
        # It is no window: another session hears of it only by a refusal of its own.
        stage.ask(agent(24), controls(session="another"))
        assert len(stage.forwarded) == 9


def long_result(rounds: int, arguments: str = "{}") -> list[Json]:
    call = {"id": "call_long", "type": "function", "function": {"name": "run", "arguments": arguments}}
    text = f"first line\n{'a line in the middle ' * 400}\nlast line"
    said = {"role": "tool", "tool_call_id": "call_long", "content": text}
    asked: list[Any] = [
        {"role": "user", "content": "Read the log."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    return [*asked, said, *map(dict, chat(rounds)[2:])]


@pytest.mark.parametrize("arguments", ["{}", json.dumps({"text": "to be written " * 400})])
def test_a_string_with_too_many_characters_is_shortened_in_its_middle(arguments: str) -> None:
    with refusing(by_characters) as stage:
        stage.ask(long_result(0, arguments), controls(session="s"))
        call, said = stage.last_view[1:3]
        assert len(stage.forwarded) == 2
        assert said["content"].startswith("first line")
        assert said["content"].endswith("last line")
        assert "characters left out" in said["content"]
        assert isinstance(json.loads(call["tool_calls"][0]["function"]["arguments"]), dict)
        stage.ask(long_result(1, arguments), controls(session="s"))
        assert stage.last_view[:3] == [stage.last_view[0], call, said]
        assert len(stage.forwarded) == 3


def test_what_stays_of_a_string_is_counted() -> None:
    with refusing(by_characters, window=16_000) as stage:
        asked, said, result, *rest = long_result(0)
        text = f"{'so many words ' * 200}{'9f3Kq!x' * 1_000}{'so many words ' * 200}"
        answer = stage.ask([asked, said, {**result, "content": text}, *rest], controls(session="s"))
        assert answer.header("X-Condenser-Count") == "exact"
        assert int(answer.header("X-Condenser-Tokens-After") or 0) == count({"messages": stage.last_view})


def named(member: str) -> Refuse:
    def refuse(exchange: Exchange) -> Reply:
        said = f"Invalid 'messages[1].{member}': string too long. Expected a string with maximum length 40, but got a"
        return replies.error(400, f"{said} string with length 54 instead.", code="string_above_max_length")

    return refuse


def within_the_rate(_: Exchange) -> Reply:
    said = "Rate limit reached for m on tokens per min (TPM): Limit 3000, Used 2900, Requested 1876. Try again in 9s."
    return replies.error(429, said, type="tokens", code="rate_limit_exceeded")


def by_number_of_tools(_: Exchange) -> Reply:
    said = (
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 130"
    )
    return replies.error(400, said, code="array_above_max_length")


LAST = [{"role": "user", "content": "And this one: " + "word " * 2_000}]
PASSING: dict[str, tuple[list[Any], Refuse]] = {
    "the last user message": ([*chat(1)[1:-1], *LAST], by_characters),
    "the system": ([{**LAST[0], "role": "system"}, *chat(2)[1:]], by_characters),
    "an id": (agent(12), named("tool_calls[0].id")),
    "a rate that is used up": (agent(24), within_the_rate),
    "a list that is not the history": (agent(24), by_number_of_tools),
}


@pytest.mark.parametrize("what", PASSING)
def test_what_is_not_ours_to_mend_passes(what: str) -> None:
    messages, refuse = PASSING[what]
    with refusing(refuse) as stage:
        body = json.dumps({"model": "m", "messages": messages}).encode()
        answer = stage.post(body, controls(session="s"))
        only = stage.upstream.journal.only()
        assert (answer.status, answer.body, only.body) == (only.status, only.sent, body)


# -- documents ---------------------------------------------------------------------------------------------------


def pdf(number: int, pages: int) -> str:
    kids = b" ".join(b"<< /Type /Page >>" for _ in range(pages))
    return base64.b64encode(b"%%PDF-1.4 %d << /Type /Pages /Count %d >> %b %%%%EOF" % (number, pages, kids)).decode()


def chat_part(data: str) -> Json:
    return {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}}


def messages_part(data: str) -> Json:
    return {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}


def responses_part(data: str) -> Json:
    return {"type": "input_file", "file_data": f"data:application/pdf;base64,{data}"}


PATHS: dict[str, tuple[str, str, Callable[[str], Json]]] = {
    "chat": (CHAT, "messages", chat_part),
    "messages": ("/v1/messages", "messages", messages_part),
    "responses": ("/v1/responses", "input", responses_part),
}


def asked_with(stage: Stage, protocol: str, pages: list[int]) -> wire.Answer:
    """Asks about documents of so many pages, one in each user message."""
    path, member, part = PATHS[protocol]
    said: list[Json] = []
    for number, each in enumerate(pages):
        text = {"type": "input_text" if protocol == "responses" else "text", "text": f"Read number {number}."}
        said.append({"role": "user", "content": [part(pdf(number, each)), text]})
        said.append({"role": "assistant", "content": "Done."})
    body = json.dumps({"model": "m", "max_tokens": 100, member: said[:-1]}).encode()
    headers = [*wire.JSON, ("Authorization", "Bearer k"), *controls(session="s")]
    return wire.request(stage.proxy.url, "POST", path, body, headers)


def by_pages(exchange: Exchange) -> Reply:
    data = [each.partition('"')[0].rpartition(",")[2] for each in exchange.body.decode().split('data": "')[1:]]
    data += [each.partition('"')[0].rpartition(",")[2] for each in exchange.body.decode().split('data":"')[1:]]
    if sum(base64.b64decode(each).count(b"/Type /Page ") for each in data) > 100:
        return replies.error(400, "messages.0.content.0: A maximum of 100 PDF pages may be provided.")
    return replies.json_reply(ANSWERS[exchange.path])


@pytest.mark.parametrize("protocol", PATHS)
def test_the_oldest_documents_leave_until_the_pages_fit(protocol: str) -> None:
    with refusing(by_pages) as stage:
        assert asked_with(stage, protocol, [60, 30, 50]).status == 200
        refused, mended = [each.body.decode() for each in stage.upstream.journal]
        assert [pdf(number, pages) in mended for number, pages in enumerate([60, 30, 50])] == [False, True, True]
        assert (mended.count(note_of(DOCUMENTS)), refused.count(note_of(DOCUMENTS))) == (1, 0)
        assert asked_with(stage, protocol, [60, 30, 50, 10]).status == 200
        assert len(list(stage.upstream.journal)) == 3
        assert list(stage.upstream.journal)[-1].body.decode().startswith(mended[: mended.rindex("]")].rstrip())


def test_documents_of_the_last_user_message_and_pins_stay() -> None:
    with refusing(by_pages, admin={"token": TOKEN}) as stage:
        assert asked_with(stage, "messages", [120]).status == 400
        assert len(list(stage.upstream.journal)) == 1
        assert asked_with(stage, "messages", [10, 20]).status == 200
        document: Json = admin(stage, f"{SESSIONS}/s").json()
        pinned = admin(stage, f"{place_of(document)}/pins", "POST", {"message": 0, "branch": "main"})
        assert pinned.status == 200, pinned.body
        assert asked_with(stage, "messages", [10, 20, 90]).status == 200
        sent = list(stage.upstream.journal)[-1].body.decode()
        assert [pdf(number, pages) in sent for number, pages in enumerate([10, 20, 90])] == [True, False, True]
