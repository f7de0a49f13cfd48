"""A session is shown under a proof of its owner's credential, by an upstream that judges credentials."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.callers.tenants import FRESH
from tests.http.test_trust import Doorman
from tests.support import wire
from tests.support.logins import login
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply, error
from tests.support.stage import WINDOW, body_of, chat, controls, count
from tests.support.upstream import Counting, ScriptedUpstream
from tests.support.virtual_time import Clock
from tests.support.wire import Answer

KEY = "sk-employee"
SECRET = "The code of the cellar is 4711."
VENDORS, LOCAL = "vendor-1", "local-1"
SEARCH = "/_condenser/own/search"


class Mixed:
    """A vendor that judges credentials, a local server that takes none, and one who asks both."""

    def __init__(self, proxy: Proxy, vendor: ScriptedUpstream, local: ScriptedUpstream, clock: Clock) -> None:
        self.proxy, self.vendor, self.local, self.clock = proxy, vendor, local, clock
        self.doorman = Doorman(KEY)
        vendor.answer(self.doorman)

    def ask(self, model: str, headers: Any = (), *, messages: Any = None, key: str = KEY) -> Answer:
        said = messages or [*chat(1), {"role": "assistant", "content": SECRET}, {"role": "user", "content": "And?"}]
        asked = [*wire.JSON, ("Authorization", f"Bearer {key}"), *headers]
        return wire.request(self.proxy.url, "POST", CHAT, body_of(said, model), asked)

    def finds(self, session: str) -> bool:
        named = [("Authorization", f"Bearer {KEY}")]
        answer = wire.post_json(self.proxy.url, SEARCH, {"query": "cellar", "session": session}, named)
        assert answer.status in (200, 403, 404)
        return "4711" in answer.body.decode()

    def revoke(self) -> None:
        self.doorman.known.clear()
        assert self.ask(VENDORS).status == 401


@contextmanager
def mixed(**settings: Any) -> Iterator[Mixed]:
    clock = Clock(1_800_000_000.0)
    with ScriptedUpstream(counting=Counting(count)) as vendor, ScriptedUpstream(counting=Counting(count)) as local:
        entries = [
            {"name": "vendor", "base_url": vendor.url, "models": ["vendor-*"]},
            {"name": "local", "base_url": local.url, "takes_credentials": False},
        ]
        settings = {"upstream": {"base_url": None}, "upstreams": entries, "window": WINDOW, "clock": clock, **settings}
        with running_proxy("", **settings) as proxy:
            yield Mixed(proxy, vendor, local, clock)


IN_S = controls(session="s")


def test_a_key_that_its_vendor_has_revoked_sees_nothing_beside_a_server_that_judges_nobody() -> None:
    with mixed(strategy="mask") as stage:
        assert stage.ask(VENDORS, [*IN_S, *controls(history="append")]).status == 200
        assert stage.ask(VENDORS, controls(session="t")).status == 200
        stage.proxy.quiet()
        assert stage.finds("s")
        stage.revoke()
        assert not stage.finds("s")
        assert not stage.finds("t")
        more = [{"role": "user", "content": "More."}]
        refused = stage.ask(LOCAL, [*IN_S, *controls(history="append")], messages=more)
        assert (refused.status, refused.json()["error"]["code"]) == (403, "credential_unproven")
        for asked in (controls(session="t", dry_run="true"), controls(session="t")):
            assert "4711" not in stage.ask(LOCAL, asked, messages=more).body.decode()
        assert "4711" not in str([each.body for each in stage.local.journal])
        stage.doorman.known.add(f"Bearer {KEY}")
        again = stage.ask(VENDORS, [*IN_S, *controls(history="append")], messages=more)
        view = stage.vendor.journal.to()[-1].body.decode()
        assert (again.status, "4711" in view, view.count("More.")) == (200, True, 1)


def test_a_session_goes_on_at_such_a_server_while_the_proof_is_fresh() -> None:
    with mixed(strategy="mask") as stage:
        assert stage.ask(VENDORS, controls(session="s", force="true"), messages=chat(12)).action == "condensed"
        stage.proxy.quiet()
        assert stage.ask(LOCAL, IN_S, messages=chat(12)).action == "replayed"
        stage.clock.now += FRESH + 1
        assert stage.ask(LOCAL, IN_S, messages=chat(12)).action != "replayed"
        assert stage.ask(VENDORS, IN_S, messages=chat(12)).action == "replayed"
        stage.proxy.quiet()
        assert stage.ask(LOCAL, IN_S, messages=chat(12)).action == "replayed"


def test_a_session_that_began_there_needs_no_proof_until_an_upstream_has_judged_its_owner() -> None:
    with mixed(strategy="mask") as stage:
        assert stage.ask(LOCAL, IN_S).status == 200
        stage.proxy.quiet()
        assert stage.finds("s")
        stage.revoke()
        assert stage.finds("s")
        stage.doorman.known.add(f"Bearer {KEY}")
        assert stage.ask(VENDORS, IN_S).status == 200
        stage.proxy.quiet()
        assert stage.finds("s")
        stage.revoke()
        assert not stage.finds("s")


def test_with_one_tenant_for_all_no_proof_is_asked_for() -> None:
    with mixed(strategy="mask", single_user=True) as stage:
        assert stage.ask(VENDORS, controls(session="s", force="true"), messages=chat(12)).action == "condensed"
        stage.proxy.quiet()
        stage.clock.now += FRESH + 1
        assert stage.ask(LOCAL, IN_S, messages=chat(12)).action == "replayed"


def gateway(exchange: Exchange) -> Reply | None:
    """It is content with a subscription, a cookie or a header that nobody knows, else it checks the login."""
    takes = [exchange.header(name) for name in ("ocp-apim-subscription-key", "cookie", "x-portal-pass", "x-auth-token")]
    is_owner = exchange.header("authorization") == f"Bearer {login('ann')}"
    return None if is_owner or any(takes) else error(401)


@pytest.mark.parametrize("name", ["Ocp-Apim-Subscription-Key", "Cookie", "X-Portal-Pass", "X-Auth-Token"])
def test_a_forged_login_beside_what_else_a_gateway_takes_sees_nothing(name: str) -> None:
    said = [*chat(1), {"role": "assistant", "content": SECRET}, {"role": "user", "content": "And?"}]
    with ScriptedUpstream(counting=Counting(count)) as upstream, running_proxy(upstream.url, window=WINDOW) as proxy:
        upstream.answer(gateway)

        def asked(path: str, body: Any, key: str, *more: tuple[str, str]) -> Answer:
            return wire.post_json(proxy.url, path, body, [("Authorization", f"Bearer {key}"), *more])

        chatting, search = {"model": "m", "messages": said}, {"query": "cellar", "session": "s"}
        owner, forged, own = login("ann"), login("ann", signature="forged"), (name, "session=mallory")
        assert asked(CHAT, chatting, owner, *IN_S).status == 200
        proxy.quiet()
        assert "4711" in asked(SEARCH, search, owner).body.decode()
        assert asked(CHAT, chatting, forged).status == 401
        assert asked(CHAT, {**chatting, "messages": chat(1)}, forged, own).status == 200
        proxy.quiet()
        for more in ([own], []):
            assert "4711" not in asked(SEARCH, search, forged, *more).body.decode()
            last, preview = {**chatting, "messages": chat(1)[-1:]}, controls(session="s", dry_run="true")
            assert "4711" not in asked(CHAT, last, forged, *more, *preview).body.decode()


def test_a_cookie_that_changes_with_each_reply_makes_no_new_tenant() -> None:
    with ScriptedUpstream(counting=Counting(count)) as upstream, running_proxy(upstream.url, window=WINDOW) as proxy:
        for key in ("sk-1", login("ann")):
            for cookie, action in (("lb=1", "condensed"), ("lb=2", "replayed")):
                named = [*wire.JSON, ("Authorization", f"Bearer {key}"), ("Cookie", cookie), *IN_S]
                asked = [*named, *controls(strategy="mask")]
                answer = wire.request(proxy.url, "POST", CHAT, body_of(chat(12)), asked)
                assert (answer.status, answer.action) == (200, action)
                proxy.quiet()
