"""A session belongs to one dialect: it names it, and no request in another one finds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.endpoints import ENDPOINTS
from proxy.endpoints.chat import CHAT_ENDPOINT, ChatEndpoint
from proxy.sessions.codec import decode_document, encode_session
from proxy.sessions.session import Session
from strategies.dialects import DIALECTS
from strategies.dialects.chat import Chat
from tests.proxy.remembered import DERIVED, NAMED, Sessions, recognised, settled


class _Other(Chat):
    name = "other"


class _OtherEndpoint(ChatEndpoint):
    dialect = _Other()


OTHER = _OtherEndpoint()
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _two_dialects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENDPOINTS, OTHER.dialect.name, OTHER)
    monkeypatch.setitem(DIALECTS, OTHER.dialect.name, OTHER.dialect)


async def test_the_same_id_in_another_dialect_is_another_session(sessions: Sessions) -> None:
    first = await settled(sessions, "abc", NAMED)
    elsewhere = replace(NAMED, dialect=OTHER.dialect.name)
    assert (await recognised(sessions, "abcde", elsewhere)).session is None
    other = await settled(sessions, "abc", elsewhere)
    found = [(await recognised(sessions, "abcde", each)).key for each in (NAMED, elsewhere)]
    assert found == [first.key, other.key]
    assert first.key != other.key


async def test_a_derived_session_is_not_continued_in_another_dialect(sessions: Sessions) -> None:
    await settled(sessions, "abc")
    found = await recognised(sessions, "abcde", replace(DERIVED, dialect=OTHER.dialect.name))
    assert (found.session, found.parent, found.condensations) == (None, None, ())


async def test_a_request_is_identified_in_its_own_dialect(sessions: Sessions) -> None:
    for endpoint in (CHAT_ENDPOINT, OTHER):
        for given in (None, "id"):
            assert sessions.identify(given, [], endpoint, {}).dialect == endpoint.dialect.name
        assert sessions.identify(None, [], endpoint, {"prompt_cache_key": "k"}).dialect == endpoint.dialect.name


def test_sessions_keep_their_dialect_and_an_unknown_one_misses() -> None:
    stored = encode_session(Session("s", "given", 0.0, dialect=OTHER.dialect.name))
    found = decode_document(stored)
    assert found is not None
    assert found.dialect == OTHER.dialect.name
    assert decode_document(stored.replace(b'"other"', b'"newer"')) is None
