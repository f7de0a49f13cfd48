"""The endpoint of the Responses protocol."""

from __future__ import annotations

from proxy.endpoints.chat.requests import session_hints
from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.responses import hidden_calls, replies, requests
from proxy.endpoints.responses.counter import ResponsesCounter
from proxy.endpoints.responses.splicing import ResponsesSplicer
from strategies.dialects.responses import RESPONSES

RESPONSES_ENDPOINT = Endpoint(
    dialect=RESPONSES,
    path="/v1/responses",
    path_ending="/responses",
    list_member="input",
    look=requests.look,
    from_text=lambda text: {"role": "user", "content": text},
    list_is_optional=True,
    server_state=requests.server_state,
    previous_reply=requests.PREVIOUS,
    is_kept=lambda values: values.get("store") is not False,
    counted_members=("instructions", "tools", "text"),
    counter=ResponsesCounter,
    reply_limits=("max_output_tokens",),
    offers_tools=requests.offers_tools,
    has_one_choice=lambda _values: True,
    usage_probe=lambda _values: {},
    session_hints=session_hints,
    compacts_by_usage=requests.compacts_by_usage,
    answer=replies.ANSWER,
    is_greeting=replies.is_greeting,
    last_event_at=replies.last_event_at,
    last_event_has_data=True,
    ending=replies.ending_of,
    capture=replies.capture_for,
    is_usage_alone=lambda _event: False,
    error_body=lambda error: error.to_json(),
    error_event=replies.error_event,
    beat=replies.comment,
    as_events=replies.as_events,
    count_path="/v1/responses/input_tokens",
    counted=lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens},
    question=requests.body_of,
    answers=requests.answers_in,
    prompt_members=("instructions", "tools", "text"),
    lent_headers=(b"openai-",),
    tool=hidden_calls.tool,
    tool_use=hidden_calls.tool_use,
    tool_members=hidden_calls.tool_members,
    results=hidden_calls.results,
    said=hidden_calls.said_in,
    joined=hidden_calls.reply_for_client,
    splicer=ResponsesSplicer,
)
