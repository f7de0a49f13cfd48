"""Chat requests: what the members of a body mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from proxy.endpoints.endpoint import MalformedElement, SessionHint, Values, any_session_headers
from proxy.http.headers import Headers
from strategies.core.transcript import Transcript


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


def session_hints(headers: Headers, values: Values) -> Iterator[SessionHint]:
    """The ids of any `X-…-Session-Id` header, of the metadata, and of the prompt cache."""
    yield from any_session_headers(headers)
    metadata = values.get("metadata")
    if isinstance(metadata, Mapping):
        yield SessionHint("metadata.session_id", metadata.get("session_id"))
    yield SessionHint("prompt_cache_key", values.get("prompt_cache_key"), is_weak=True)
