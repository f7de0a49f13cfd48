"""A store that is slow while a reply ends: what the client waits for, and what is stored whether it waits or not."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from proxy.store.base import StoreKey, Write
from proxy.store.sqlite import SqliteStore
from tests.support import wire
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.replies import completion, stream, text_chunks
from tests.support.signals import BOUND, Signal
from tests.support.stage import WINDOW, Headers, body_of, chat, controls, count
from tests.support.upstream import Counting, ScriptedUpstream

ONE, TWO = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
JSON = [*wire.JSON, ("Authorization", "Bearer sk-first")]


class Held(SqliteStore):
    """The store in a file; its first `save` waits for a gate, and each says when it is done."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked, self.gate, self.saved = Signal("a save"), Signal("the gate"), Signal("what was saved")

    async def save(self, key: StoreKey, write: Write) -> bool:
        """As it is, when the gate is open."""
        self.asked.set()
        await self.gate.reached()
        done = await super().save(key, write)
        self.saved.set()
        return done


@contextmanager
def holding(upstream: ScriptedUpstream, timeout: float) -> Iterator[tuple[Proxy, Held]]:
    """A proxy over a store that holds back what is saved."""
    with TemporaryDirectory() as folder:
        store = asyncio.run(Held.open(Path(folder) / "s.db"))
        assert isinstance(store, Held)
        try:
            with running_proxy(upstream.url, opened=store, window=WINDOW, store={"timeout": timeout}) as proxy:
                yield proxy, store
        finally:
            store.gate.set()
            asyncio.run(store.close())


def leave_at_the_last_byte(proxy: Proxy, store: Held, body: bytes, ours: Headers) -> None:
    """A client that is killed when all but the end of its reply has come, while its session is being saved."""
    with wire.sent(proxy.url, "POST", CHAT, body, [*JSON, *ours]) as connection:
        assert connection.getresponse().read1()
        store.asked.wait()
        wire.reset(connection)
    proxy.served()
    assert not store.saved.is_set()
    store.gate.set()
    store.saved.wait()


def test_a_client_that_leaves_at_the_last_byte_leaves_its_session_whole() -> None:
    with ScriptedUpstream(counting=Counting(count)) as upstream, holding(upstream, timeout=BOUND) as (proxy, store):
        upstream.reply(stream(*text_chunks("a reply")), completion("again"))
        leave_at_the_last_byte(proxy, store, body_of(chat(12), stream=True), controls(session="s", strategy="extract"))

        answer = wire.request(proxy.url, "POST", CHAT, body_of(chat(12)), [*JSON, *controls(session="s")])

        assert (answer.action, answer.strategy, answer.branch) == ("replayed", "extract", "main+")


def test_an_append_is_committed_although_its_client_leaves() -> None:
    with ScriptedUpstream(counting=Counting(count)) as upstream, holding(upstream, timeout=BOUND) as (proxy, store):
        upstream.reply(stream(*text_chunks("a reply")), completion("again"))
        leave_at_the_last_byte(proxy, store, body_of([ONE], stream=True), controls(session="s", history="append"))

        wire.request(proxy.url, "POST", CHAT, body_of([TWO]), [*JSON, *controls(session="s", history="append")])

        forwarded = upstream.journal.to(CHAT)[-1].json()["messages"]
        assert [each["content"] for each in forwarded] == ["one", "a reply", "two"]


def test_the_reply_comes_whole_though_its_session_is_never_saved() -> None:
    with ScriptedUpstream(counting=Counting(count)) as upstream, holding(upstream, timeout=0.2) as (proxy, store):
        answer = wire.request(proxy.url, "POST", CHAT, body_of([ONE], stream=True), [*JSON, *controls(session="s")])
        assert answer.status == 200
        assert wire.events(answer.body)[-1] == "[DONE]"
        assert store.asked.is_set()
        assert not store.saved.is_set()
