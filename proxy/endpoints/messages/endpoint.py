"""The endpoint of the Messages protocol."""

from __future__ import annotations

from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.messages import hidden_calls, replies, requests
from proxy.endpoints.messages.counter import MessagesCounter
from proxy.endpoints.messages.requests import with_marker
from proxy.endpoints.messages.splicing import MessagesSplicer
from strategies.dialects.messages import MESSAGES

MESSAGES_ENDPOINT = Endpoint(
    dialect=MESSAGES,
    path="/v1/messages",
    path_ending="/v1/messages",
    list_member="messages",
    look=requests.look,
    server_state=requests.server_state,
    counted_members=("system", "tools", "tool_choice", "output_config"),
    counter=MessagesCounter,
    reply_limits=("max_tokens",),
    offers_tools=requests.offers_tools,
    keeps_reasoning=requests.keeps_reasoning,
    has_one_choice=lambda _values: True,
    usage_probe=lambda _values: {},
    with_marker=with_marker,
    session_hints=requests.session_hints,
    is_subagent=requests.is_subagent,
    compacts_by_usage=requests.compacts_by_usage,
    key_header=(b"x-api-key", b""),
    answer=replies.ANSWER,
    is_greeting=replies.is_greeting,
    last_event_at=replies.last_event_at,
    ending=replies.ending_of,
    capture=replies.capture_for,
    is_usage_alone=lambda _event: False,
    error_body=replies.error_body,
    error_event=replies.error_event,
    beat=replies.ping,
    as_events=replies.as_events,
    count_path="/v1/messages/count_tokens",
    question=requests.body_of,
    answers=requests.answers_in,
    prompt_members=("system", "tools"),
    lent_headers=(b"anthropic-",),
    tool=hidden_calls.tool,
    tool_use=hidden_calls.tool_use,
    tool_members=hidden_calls.tool_members,
    results=hidden_calls.results,
    said=hidden_calls.said_in,
    joined=hidden_calls.reply_for_client,
    splicer=MessagesSplicer,
)
