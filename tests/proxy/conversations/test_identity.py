"""Which tenant a request belongs to, and which session it names."""

import stat
from pathlib import Path
from typing import Any

import pytest

from proxy.callers.tenants import Tenants, TrustedProxies, claims_of, tenant_key
from proxy.conversations.recognition import Identity, Recogniser, new_derived_id, provisional_id
from proxy.conversations.session import printable_id, session_key
from proxy.conversations.stored import StoredSessions
from proxy.errors import BadRequest
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.quoting import CREDENTIALS
from proxy.settings import Settings
from proxy.settings.tables import ServerSettings, TenantSettings
from tests.support.logins import login

NAMES = Settings().sessions.headers
NO_STORE: Any = None


def named(headers: list[tuple[bytes, bytes]], body: dict[str, Any] | None = None, given: str | None = None) -> Identity:
    return Recogniser(StoredSessions(NO_STORE, 1.0), NAMES).identify(given, headers, CHAT_ENDPOINT, body or {})


def test_headers_of_the_setting_name_a_session_in_its_order() -> None:
    for name in NAMES:
        assert named([(name.upper().encode(), b"id-1")]) == Identity(name, "id-1")
    headers = [(name.encode(), name.encode()) for name in reversed(NAMES)]
    for place, name in enumerate(NAMES):
        assert named(headers[: len(NAMES) - place]) == Identity(name, name)


def test_other_session_headers_come_later_and_the_first_of_two_counts() -> None:
    any_header = (b"X-My-Tool-Session-Id", b"mine")
    assert named([any_header]) == Identity("x-my-tool-session-id", "mine")
    assert named([any_header, (b"x-conversation-id", b"lowered_names")]).source == "x-conversation-id"
    assert named([(b"thread-id", b"one"), (b"Thread-Id", b"two")]) == Identity("thread-id", "one")
    assert named([(b"thread-id", b""), (b"thread-id", b"two")]) == Identity()
    assert named([(b"x-a-session-id", b""), (b"x-a-session-id", b"two")]) == Identity("x-a-session-id", "two")


def test_what_only_resembles_a_session_names_nothing() -> None:
    for name in [b"x-session-identity", b"x--session-id-x", b"my-session-id", b"session"]:
        assert named([(name, b"x")]) == Identity()
    odd: list[dict[str, Any]] = [{"metadata": {"session_id": value}} for value in ("", 7)]
    odd += [{"metadata": ["session_id"]}, {"metadata": None, "prompt_cache_key": None}, {"prompt_cache_key": ["k"]}]
    for body in ({"user": "u", "safety_identifier": "s", "id": "i"}, *odd):
        assert named([(b"x-request-id", b"r"), (b"x-session-id", b"")], body) == Identity()


def test_the_body_names_a_session_after_all_headers() -> None:
    body = {"metadata": {"session_id": "m"}, "prompt_cache_key": "k"}
    assert named([], body) == Identity("metadata.session_id", "m")
    assert named([(b"x-a-session-id", b"h")], body).id == "h"
    assert named([(b"x-session-id", b"h")], body, "own") == Identity("X-Condenser-Session", "own")
    assert named([], {"prompt_cache_key": "k"}) == Identity("prompt_cache_key", "k", weak=True)


@pytest.mark.parametrize("value", ["a\nb", "a\x00", "\x7f"])
def test_an_id_with_control_characters_is_refused_and_its_source_named(value: str) -> None:
    with pytest.raises(BadRequest, match=r"metadata\.session_id"):
        named([], {"metadata": {"session_id": value}})


def test_an_odd_id_is_refused_or_shown_by_its_digest_never_cut() -> None:
    ids = ["a" * 300, "a" * 301, "a", "A", "a ", "ä", "会话", "\ud800", "/../x", "a:b"]
    keys = [session_key(each) for each in ids]
    assert len(set(keys)) == len(ids)
    assert all(key.isalnum() and key.isascii() for key in keys)
    for text in ("a b", "x" * 256, "~!@"):
        assert printable_id(text) == text
    for text in ("x" * 257, "会话", "caf\u00e9", "a\x1fb"):
        assert printable_id(text) == session_key(text)


def test_derived_ids_are_random_and_provisional_ids_are_deterministic() -> None:
    assert new_derived_id() != new_derived_id()
    assert provisional_id("t", b"opening") == provisional_id("t", b"opening")
    assert len({provisional_id("t", b"a"), provisional_id("t", b"b"), provisional_id("u", b"a")}) == 3


def tenants(key: bytes = b"k", proxies: Any = (), **tenant: Any) -> Tenants:
    return Tenants(Settings(tenant=TenantSettings(**tenant), server=ServerSettings(trusted_proxies=proxies)), key)


def test_a_tenant_is_made_of_its_credential_and_our_key() -> None:
    headers = [(b"authorization", b"Bearer sk-1")]
    assert tenants(b"one").owner(headers, None) != tenants(b"two").owner(headers, None)
    header = tenants(b"k", proxies=("::1",), **{"from": "header:x-team"}).owner([(b"x-team", b"same")], "::1")
    assert header.tenant != tenants().owner([(b"authorization", b"same")], "p").tenant
    for name in [b"authorization", b"api-key", b"x-api-key"]:
        assert tenants().owner([(name, b"Bearer sk-1")], None).tenant == "2a09c2ac9448cbfb0114fe7aa02b4384"
    keys = {tenant_key(Settings(store={"url": f"redis://{host}:1/0"})) for host in ("a", "b")}  # type: ignore[arg-type]
    assert len(keys) == 1


def test_a_header_names_the_tenant_only_where_a_trusted_proxy_sends_it() -> None:
    by = tenants(b"k", proxies=("10.0.0.1",), **{"from": "header:X-Team"})
    headers = [(b"x-team", b"red"), (b"authorization", b"anything")]
    assert by.owner(headers, "10.0.0.1").tenant == by.owner(headers[:1], "10.0.0.1").tenant
    for given, peer in ((headers, "10.0.0.2"), (headers, None), (headers[1:], "10.0.0.1")):
        with pytest.raises(BadRequest) as raised:
            by.owner(given, peer)
        assert raised.value.param == "X-Team"


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("fd00::7", True), ("192.168.0.1", True),
        ("11.0.0.1", False), ("192.168.0.2", False), ("fe80::1", False), ("", False), ("socket", False), (None, False),
    ],
)  # fmt: skip
def test_a_proxy_is_trusted_by_its_address_or_network(peer: str | None, trusted: bool) -> None:
    assert (peer in TrustedProxies(["10.0.0.0/8", "fd00::/8", "192.168.0.1"])) is trusted
    assert (peer in TrustedProxies(["::ffff:10.0.0.0/104", "fd00::/8", "::ffff:192.168.0.1"])) is trusted


@pytest.mark.parametrize(
    "value", ["sk-1", "Bearer sk-1", "Bearer a.b.c", "Bearer ..", f"Basic {login('a')}", f"Bearer {login('')}",
              f"Bearer {login('a')}.x", f"Bearer {login('a').rpartition('.')[0]}", f"Bearer {login('a', '')}"],
)  # fmt: skip
def test_what_is_no_signed_login_names_nobody(value: str) -> None:
    assert claims_of(value) is None


def test_a_login_names_somebody_only_where_nothing_else_may_be_a_credential() -> None:
    """An upstream may judge the other one, or one in the query."""
    of, alone = tenants().owner, [(b"authorization", f"bearer {login('ann')}".encode())]
    assert of(alone, None).login == of([(b"authorization", f"Bearer {login('ann', exp=2)}".encode())], None).login != ""
    named = [(b"User-Agent", b"a"), (b"x-stainless-os", b"a"), (b"session-id", b"s"), (b"x-forwarded-for", b"::1")]
    named += [(b"X-Condenser-Window", b"8000"), (b"content-length", b"1"), (b"ChatGPT-Account-Id", b"a")]
    assert of([*alone, *named], None) == of(alone, None)
    for more in (b"x-api-key", b"ocp-apim-subscription-key", b"X-Auth-Token", b"cookie", b"x-portal-session", b"x-sid"):
        other = of([*alone, *named, (more, b"mallory")], None)
        assert other.login == ""
        assert other.credential != of(alone, None).credential  # so that its proof proves no login that comes alone
    assert of([(b"x-api-key", alone[0][1])], None).login == ""
    assert len({of(alone, None, prefix, query).login for prefix in ("", "/p") for query in (b"", b"key=mine")}) == 4


def test_a_cookie_names_the_tenant_only_where_nothing_else_does() -> None:
    of = tenants().owner
    cookies = [(b"cookie", b"session=ann"), (b"Cookie", b"session=bob")]
    assert len({of([each], None).tenant for each in cookies} | {of([], None).tenant}) == 3
    for key in (b"Bearer sk-1", f"Bearer {login('ann')}".encode()):
        sticky = {of([(b"authorization", key), each], None) for each in cookies}
        assert len(sticky) == 1
        (one,) = sticky
        assert (one.tenant, one.login) == (of([(b"authorization", key), (b"x-sid", b"1")], None).tenant, "")
        assert one.credential != of([(b"authorization", key)], None).credential


def test_headers_of_the_setting_count_besides_those_that_are_known_each_in_its_place() -> None:
    by = tenants(headers=["x-portal-key"])
    for name in ("x-portal-key", "Ocp-Apim-Subscription-Key", "X-Auth-Token", "x-access-token"):
        assert by.owner([(name.encode(), b"a")], None) != by.owner([(name.encode(), b"b")], None)
    dummy = (b"authorization", b"Bearer EMPTY")
    for name in CREDENTIALS[1:]:
        other = {tenants().owner([dummy, (name.encode(), value)], None) for value in (b"one", b"two")}
        assert len({*other, tenants().owner([dummy], None)}) == 3
    given, by = [(b"authorization", b"one"), (b"api-key", b"two")], tenants()
    assert by.owner(given, None) == by.owner(given[::-1], None)
    assert by.owner(given, None) != by.owner([(b"authorization", b"two"), (b"api-key", b"one")], None)
    assert by.owner([*given, (b"x-api-key", b"3")], None) != by.owner([*given, (b"helicone-auth", b"3")], None)


@pytest.mark.parametrize("source", ["credential", "fixed", "header:X-Team"])
@pytest.mark.parametrize("name", ["Authorization", "x-litellm-api-key"])
def test_a_credential_that_stands_twice_is_refused(source: str, name: str) -> None:
    twice = [(name.encode(), b"one"), (b"x-team", b"red"), (name.lower().encode(), b"one")]
    with pytest.raises(BadRequest) as raised:
        tenants(b"k", **{"from": source}).owner(twice, "127.0.0.1")
    assert raised.value.param == name
    assert "one" not in raised.value.message


def test_a_tenants_header_stands_once_and_is_not_empty() -> None:
    by = tenants(b"k", **{"from": "header:X-Team"})
    for given in ([(b"x-team", b"acme"), (b"X-Team", b"evil")], [(b"x-team", b"")], [(b"x-team", b" ")]):
        with pytest.raises(BadRequest) as raised:
            by.owner(given, "127.0.0.1")
        assert raised.value.param == "X-Team"


def test_the_key_stands_beside_an_embedded_store_and_is_made_once(tmp_path: Path) -> None:
    settings = Settings(store={"url": f"sqlite:///{tmp_path / 'new' / 's.db'}"})  # type: ignore[arg-type]
    key = tenant_key(settings)
    file = tmp_path / "new" / "tenant.key"
    assert key == tenant_key(settings) == file.read_bytes()
    assert len(key) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_pepper_of_the_settings_wins(tmp_path: Path) -> None:
    settings = Settings(
        store={"url": f"sqlite:///{tmp_path / 's.db'}"},  # type: ignore[arg-type]
        tenant={"pepper": "p"},  # type: ignore[arg-type]
    )
    assert tenant_key(settings) == b"p"
    assert not (tmp_path / "tenant.key").exists()
