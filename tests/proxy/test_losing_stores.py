"""A store that may lose what it was given: append mode, where nobody else has the history, refuses, never forgets."""

from pathlib import Path

import pytest

from tests.proxy.command_line import run
from tests.proxy.test_workers import answers, serving
from tests.support.redis_server import RedisServer, asking, await_true
from tests.support.signals import BOUND
from tests.support.stage import Stage, body_of, chat, controls, proxy_with_upstream
from tests.support.upstream import ScriptedUpstream
from tests.support.wire import Answer

SAVING = ("--appendonly", "yes")
EVICTING = (*SAVING, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")


def append(stage: Stage, text: str) -> Answer:
    return stage.post(body_of([{"role": "user", "content": text}]), controls(session="a", history="append"))


def test_a_redis_that_evicts_gets_no_appends_and_all_else() -> None:
    with RedisServer(*EVICTING) as redis, proxy_with_upstream(store={"url": redis.url}) as stage:
        refused = append(stage, "one")
        assert refused.status == 503
        assert "store-evicts" in refused.json()["error"]["message"]
        assert stage.ask(chat(12), controls(session="s")).action == "condensed"
        with asking(redis.port) as client:
            client.config_set("maxmemory-policy", "noeviction")
    with RedisServer(*SAVING) as redis, proxy_with_upstream(store={"url": redis.url}) as stage:
        assert append(stage, "one").status == 200


@pytest.mark.parametrize("part", ["meta", "blocks", "one block"])
def test_a_history_of_which_a_part_is_gone_is_never_a_shorter_one(part: str) -> None:
    with RedisServer() as redis:
        with proxy_with_upstream(store={"url": redis.url}) as stage:
            assert [append(stage, text).status for text in ("one", "two", "three")] == [200] * 3
        with asking(redis.port) as client:
            (key,) = client.keys(f"condenser:*:{part.rpartition(' ')[2].removesuffix('s')}*")
            if part == "one block":
                client.hdel(key, client.hkeys(key)[0])
            else:
                client.delete(key)
        with proxy_with_upstream(store={"url": redis.url}) as stage:  # another replica, which remembers nothing
            refused = append(stage, "four")
            assert (refused.status, refused.json()["error"]["code"]) == (409, "history_incomplete")
            assert stage.forwarded == []


WEAK = {
    "store-evicts": (EVICTING, "evicts"),
    "store-unkept": ((), "keeps nothing on disk"),
    "store-read-only": ((*SAVING, "--replicaof", "127.0.0.1 1"), "replica that takes no writes"),
}


@pytest.mark.parametrize("name", WEAK)
@pytest.mark.usefixtures("elsewhere")
def test_start_and_check_say_what_a_redis_is(
    name: str, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options, said = WEAK[name]
    with RedisServer(*options) as redis:
        words = ("--upstream", upstream.base_url, "--store", redis.url)
        _, out, _ = run(capsys, "check", *words)
        notes = [line for line in out.splitlines() if line.startswith("note   The Redis")]
        assert [said in each for each in notes] == [True]
        with (tmp_path / "stderr").open("wb") as log, serving(*words, log=log) as (url, _):
            await_true(lambda: answers(url), "a worker answers", 4 * BOUND)
        lines = (tmp_path / "stderr").read_text("utf-8").splitlines()
        warned = [line for line in lines if " the Redis " in line and "tenant.pepper" not in line]
        assert [said in each for each in warned] == [True]


@pytest.mark.usefixtures("elsewhere")
def test_a_redis_that_keeps_what_it_gets_needs_no_word(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    with RedisServer(*SAVING) as redis:
        _, out, _ = run(capsys, "check", "--upstream", upstream.base_url, "--store", redis.url)
        assert "The Redis" not in out
