"""The endpoint of chat: what the members of a request mean, and the bodies and answers of the proxy's own calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.endpoints.chat import hidden_calls, replies
from proxy.endpoints.chat.counter import ChatCounter
from proxy.endpoints.chat.splicing import ChatSplicer
from proxy.endpoints.endpoint import Endpoint, MalformedElement, Question, Values, openai_session_hints, written
from strategies.core.effects import Answer, Failure
from strategies.core.transcript import Transcript
from strategies.dialects.chat import CHAT, RESULT_ROLES


def look(value: object) -> tuple[str, bool]:
    """The role of a message, and whether its content is text only; raises `MalformedElement`."""
    if not isinstance(value, dict):
        raise MalformedElement("must be an object.")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str):
        raise MalformedElement("has no 'role', or one that is no string.", ".role")
    return role, not isinstance(content, list) or all(map(_is_text, content))


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")


def offers_tools(values: Values, _: Transcript) -> bool:
    """Whether a request offers tools, or functions as they were called once."""
    return bool(values.get("tools") or values.get("functions"))


def usage_probe(values: Values) -> Mapping[str, str]:
    """The stream options that ask for the usage, if a request does not ask for it and has a place for them."""
    options = values.get("stream_options")
    if not (options is None or isinstance(options, Mapping)):
        return {}
    if options and options.get("include_usage") is True:
        return {}
    return {"stream_options": json.dumps({**(options or {}), "include_usage": True})}


# -- the proxy's own calls -----------------------------------------------------------------------------------------


def body_of(question: Question, limit: str) -> bytes:
    """The body of a request, with the bound on the answer's length under the name `limit`."""
    members = {"model": json.dumps(question.model), "messages": _messages(question)}
    members |= question.members
    if question.has_tools:
        members["tool_choice"] = '"none"'
    if question.n > 1:
        members["n"] = str(question.n)
    if question.temperature is not None:
        members["temperature"] = json.dumps(question.temperature)
    members[limit] = str(question.max_tokens)
    return written(members)


def _messages(question: Question) -> str:
    if question.view is not None:
        return question.continued(question.view, CHAT, ("user", *RESULT_ROLES))
    # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
    return json.dumps([{"role": "system", "content": question.system}, {"role": "user", "content": question.user}])


def answers_in(document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
    """The answers in a completion; None if it is none. Each is said to have cost `tokens`."""
    choices = document.get("choices")
    return [_answer(choice, tokens) for choice in choices] if isinstance(choices, list) else None


def _answer(choice: Any, tokens: int) -> Answer | Failure:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        return Failure("unreadable")
    return Answer(
        text=_text(message.get("content")),
        finish_reason=str(choice.get("finish_reason")),
        tokens=tokens,
        called_tools=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _text(content: object) -> str:
    """The text of a message's content, its text parts joined; "" where there is none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [each.get("text") for each in parts if isinstance(each, Mapping) and each.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


# -- the endpoint ------------------------------------------------------------------------------------------------

CHAT_ENDPOINT = Endpoint(
    dialect=CHAT,
    path="/v1/chat/completions",
    path_ending="/chat/completions",
    list_member="messages",
    look=look,
    counted_members=("tools", "functions", "tool_choice", "function_call", "response_format"),
    counter=ChatCounter,
    reply_limits=("max_completion_tokens", "max_tokens"),
    offers_tools=offers_tools,
    has_one_choice=lambda values: values.get("n") in (None, 1),
    usage_probe=usage_probe,
    session_hints=openai_session_hints,
    answer=replies.ANSWER,
    is_greeting=replies.is_greeting,
    last_event_at=replies.last_event_at,
    text_places=replies.TEXT_PLACES,
    items_in=replies.items_in,
    stream_capture=replies.ChatCapture,
    is_usage_alone=replies.is_usage_alone,
    error_body=lambda error: error.to_json(),
    error_event=replies.error_event,
    beat=replies.empty_chunk,
    as_events=replies.as_events,
    question=body_of,
    answers=answers_in,
    prompt_members=("tools",),
    gives_several_answers=True,
    lent_headers=(b"openai-",),
    tool=hidden_calls.tool,
    tool_use=hidden_calls.tool_use,
    tool_members=hidden_calls.tool_members,
    results=hidden_calls.results,
    said=hidden_calls.first_choice_in,
    joined=hidden_calls.reply_for_client,
    splicer=ChatSplicer,
)
