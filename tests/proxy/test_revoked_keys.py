"""Keys by command: made, listed, and revoked at all replicas on one store."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.command_line import run
from tests.support import wire
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT
from tests.support.redis_server import RedisServer, asking, await_true
from tests.support.upstream import ScriptedUpstream

HI = b'{"model":"scripted-1","messages":[{"role":"user","content":"hi"}]}'
LIST = "condenser:{revoked-keys}:sum"
WITHIN = 5.0  # seconds: a second of the product, and what a loaded machine takes


def new_key(capsys: pytest.CaptureFixture[str], name: str) -> tuple[str, dict[str, str]]:
    code, out, _ = run(capsys, "keys", "new", name)
    assert code == 0
    key, _, rest = out.partition("\n")
    (entry,) = tomllib.loads(rest[rest.index("[[") :])["auth"]["keys"]
    return key, entry


def status(url: str, key: str) -> int:
    return wire.request(url, "POST", CHAT, HI, [*wire.JSON, ("Authorization", f"Bearer {key}")]).status


@contextmanager
def keyed(
    upstream: ScriptedUpstream, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, *entries: dict[str, str]
) -> Iterator[tuple[Callable[[], Any], Sequence[str]]]:
    """What makes a replica on a Redis that knows these keys, and the words for commands that do."""
    monkeypatch.setenv("CONDENSER_AUTH__MODE", "keys")
    monkeypatch.setenv("CONDENSER_AUTH__KEYS", json.dumps(entries))
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY", "sk-operator")
    settings: dict[str, Any] = {"auth": {"mode": "keys", "keys": entries}, "upstream": {"api_key": "sk-operator"}}
    with ExitStack() as stack:

        def replica() -> str:
            return stack.enter_context(running_proxy(upstream.url, store={"url": redis.url}, **settings)).url

        yield replica, ("--upstream", upstream.base_url, "--store", redis.url)


def test_entries_of_other_versions_hold_and_what_is_none_ends_nothing(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name: new_key(capsys, name) for name in ("anna", "ben", "carl")}
    with (
        RedisServer() as redis,
        keyed(upstream, redis, monkeypatch, *(entry for _, entry in made.values())) as (
            replica,
            words,
        ),
    ):
        url = replica()
        with asking(redis.port) as client:
            client.hset(LIST, mapping={"broken": 1, "a:b:c": 1, f"{made['ben'][1]['sha256']}:ben:1800000000:why": 1})
        await_true(refuses(url, made["ben"][0]), "an entry of a later version holds", WITHIN)
        code, _, err = run(capsys, "keys", "revoke", "anna", *words)
        assert (code, err) == (0, "")
        await_true(refuses(url, made["anna"][0]), "the list is still followed", WITHIN)
        assert status(replica(), made["ben"][0]) == 401
        assert status(url, made["carl"][0]) == 200
        code, out, err = run(capsys, "keys", "list", *words)
        assert (code, err, len(out.splitlines())) == (0, "", 4)


def test_a_list_that_was_lost_is_written_again_by_who_knows_it(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, entry = new_key(capsys, "anna")
    with RedisServer() as redis, keyed(upstream, redis, monkeypatch, entry) as (replica, words):
        url = replica()
        assert run(capsys, "keys", "revoke", "anna", *words)[0] == 0
        await_true(refuses(url, key), "the key has ended", WITHIN)
        with asking(redis.port) as client:
            before = client.hkeys(LIST)
            client.flushall()
            await_true(lambda: client.hkeys(LIST) == before, "the list is back", WITHIN)
        assert status(replica(), key) == 401


def refuses(url: str, key: str) -> Callable[[], bool]:
    return lambda: status(url, key) == 401


def test_a_revoked_key_ends_at_all_replicas_and_no_other_does(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name: new_key(capsys, name) for name in ("anna", "ben")}
    entries = [entry for _, entry in made.values()]
    store = f"sqlite:///{tmp_path}/condenser.db"
    monkeypatch.setenv("CONDENSER_AUTH__MODE", "keys")
    monkeypatch.setenv("CONDENSER_AUTH__KEYS", json.dumps(entries))
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY", "sk-operator")
    words = ("--upstream", upstream.base_url, "--store", store)
    settings: dict[str, Any] = {"auth": {"mode": "keys", "keys": entries}, "upstream": {"api_key": "sk-operator"}}
    with ExitStack() as stack:
        replicas = [running_proxy(upstream.url, store={"url": store}, **settings) for _ in range(2)]
        urls = [stack.enter_context(each).url for each in replicas]
        assert {status(url, key) for url in urls for key, _ in made.values()} == {200}
        code, out, _ = run(capsys, "keys", "revoke", "anna", *words)
        assert (code, out[:12]) == (0, "revoked anna")
        for url in urls:
            await_true(refuses(url, made["anna"][0]), "the key has ended", WITHIN)
            assert status(url, made["ben"][0]) == 200
    _, out, _ = run(capsys, "keys", "list", *words)
    anna, ben = out.splitlines()[1:]
    assert re.search(r" 20\d\d-", anna)
    assert ben.endswith(" no")
    listed = json.loads(run(capsys, "keys", "list", "--json", *words)[1])["data"]
    assert [(each["name"], each["tenant"], each["revoked"] is None) for each in listed] == [
        ("anna", "anna", False),
        ("ben", "ben", True),
    ]
    assert run(capsys, "keys", "revoke", "carl", *words)[0] == 1
    assert run(capsys, "keys", "revoke", "anna", "--upstream", upstream.base_url, "--store", "memory://")[0] == 2
    assert run(capsys, "keys", "new", "no name")[0] == 2
