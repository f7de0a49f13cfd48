"""The endpoint of the chat protocol."""

from __future__ import annotations

from proxy.endpoints.chat import hidden_calls, replies, requests
from proxy.endpoints.chat.counter import ChatCounter
from proxy.endpoints.chat.splicing import ChatSplicer
from proxy.endpoints.endpoint import Endpoint
from strategies.dialects.chat import CHAT

CHAT_ENDPOINT = Endpoint(
    dialect=CHAT,
    path="/v1/chat/completions",
    path_ending="/chat/completions",
    list_member="messages",
    look=requests.look,
    counted_members=("tools", "functions", "tool_choice", "function_call", "response_format"),
    counter=ChatCounter,
    reply_limits=("max_completion_tokens", "max_tokens"),
    offers_tools=requests.offers_tools,
    has_one_choice=lambda values: values.get("n") in (None, 1),
    usage_probe=requests.usage_probe,
    session_hints=requests.session_hints,
    answer=replies.ANSWER,
    is_greeting=replies.is_greeting,
    last_event_at=replies.last_event_at,
    ending=replies.ending_of,
    capture=replies.capture_for,
    is_usage_alone=replies.is_usage_alone,
    error_body=lambda error: error.to_json(),
    error_event=replies.error_event,
    beat=replies.empty_chunk,
    as_events=replies.as_events,
    question=requests.body_of,
    answers=requests.answers_in,
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
