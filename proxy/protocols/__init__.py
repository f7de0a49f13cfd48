"""Endpoints: one file for each wire protocol, with everything that the proxy knows about it except its messages.

Here they are listed by name and by path. A protocol is served if it is in this table.
"""

from __future__ import annotations

from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.messages import MESSAGES_ENDPOINT
from proxy.protocols.responses import RESPONSES_ENDPOINT

ENDPOINTS = {endpoint.dialect.name: endpoint for endpoint in (CHAT_ENDPOINT, MESSAGES_ENDPOINT, RESPONSES_ENDPOINT)}
PATHS = {path: endpoint for endpoint in ENDPOINTS.values() for path in (endpoint.path, f"{endpoint.path}/")}
"""The endpoints by the paths of requests."""
COMPACT_PATHS = {endpoint.compact_path: endpoint for endpoint in ENDPOINTS.values() if endpoint.compact_path}
"""The endpoints by the paths at which clients have their list compacted by the server."""
COUNT_PATHS = {endpoint.count_path: endpoint for endpoint in ENDPOINTS.values() if endpoint.count_path}
"""The endpoints by the paths at which clients ask how many tokens a request has."""

_ASIDE = {**COUNT_PATHS, **COMPACT_PATHS}
ENDINGS = {at.path_ending: at.path for at in ENDPOINTS.values()} | {
    path.replace(at.path, at.path_ending): path for path, at in _ASIDE.items()
}
"""The paths that are served below a provider's prefix, by how a path ends there."""


def endpoint_at(path: str) -> Endpoint:
    """The endpoint at a path or above it; for other paths chat's, whose errors have the form of all of OpenAI's API."""
    return _above(path) or CHAT_ENDPOINT


def protocol_at(path: str) -> str:
    """The protocol of an endpoint at a path or above it; "" for any other path."""
    endpoint = _above(path)
    return endpoint.dialect.name if endpoint else ""


def _above(path: str) -> Endpoint | None:
    above = (endpoint for endpoint in ENDPOINTS.values() if f"{endpoint.path_ending}/" in f"{path}/")
    return PATHS.get(path) or next(above, None)


def endpoint_serving(path: str) -> Endpoint | None:
    """The endpoint whose requests are read at a path, which may have a provider's prefix; None for other paths."""
    endpoint = PATHS.get(path) or _ASIDE.get(path)
    if endpoint or path.startswith(("/v1/", "/_condenser/")):
        return endpoint
    ending = next(filter(path.endswith, ENDINGS), None)
    return None if ending is None else endpoint_serving(ENDINGS[ending])


def endpoint_named(name: str) -> Endpoint:
    """The endpoint of a dialect; raises `LookupError` for a dialect that only a newer version knows."""
    return ENDPOINTS[name]
