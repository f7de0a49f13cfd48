"""Bodies that come packed, and bodies that nobody need read: the first are read, the others go on as they came."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

import pytest

from tests.http.strict import assert_openai_error
from tests.http.test_bad_requests import UNREADABLE
from tests.support.packing import PACKS, zstd_with_window
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import completion
from tests.support.signals import BOUND
from tests.support.stage import WINDOW, Stage, body_of, chat, controls, proxy_with_upstream
from tests.support.upstream import ScriptedUpstream
from tests.support.wire import Answer

WORDS = [f"{number:05x}" for number in range(0, 1_000_000, 7)]
SHORT, LONG = body_of(chat(1)), body_of(chat(12))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ScriptedUpstream() as upstream:
        upstream.answer(lambda _: completion("Done."))
        with running_proxy(upstream.url, window=WINDOW, strategy="recent") as proxy:
            yield Stage(proxy, upstream)


def forwarded(stage: Stage) -> Exchange:
    """What has reached the upstream last."""
    return stage.upstream.journal.to(CHAT)[-1]


def assert_refused(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert_openai_error(answer.body)


@pytest.mark.parametrize("encoding", PACKS)
def test_a_packed_body_that_is_not_changed_goes_on_as_it_came(encoding: str, stage: Stage) -> None:
    packed = PACKS[encoding](SHORT)
    answer = stage.post(packed, [("Content-Encoding", encoding)])
    assert (answer.status, answer.action) == (200, "passed")
    assert forwarded(stage).body == packed
    assert forwarded(stage).header("content-encoding") == encoding


def test_many_packed_bodies_that_come_at_once_are_all_read() -> None:
    clients = 32
    together, words = Barrier(clients), Random(1).choices(WORDS, k=4_000)
    packed = gzip.compress(body_of([{"role": "user", "content": " ".join(words)}]))

    def sent(stage: Stage) -> int:
        together.wait(BOUND)
        return stage.post(packed, [("Content-Encoding", "gzip")]).status

    limits = {"bodies": 64 * 1024 * 1024}
    with proxy_with_upstream(window=200_000, limits=limits) as stage, ThreadPoolExecutor(clients) as pool:
        stage.upstream.answer(lambda _: completion("Done."))
        assert set(pool.map(sent, [stage] * clients)) == {200}


@pytest.mark.parametrize("encoding", PACKS)
def test_a_packed_body_that_is_condensed_goes_on_unpacked(encoding: str, stage: Stage) -> None:
    answer = stage.post(PACKS[encoding](LONG), [("Content-Encoding", encoding), *controls(session=encoding)])
    assert answer.action == "condensed"
    assert forwarded(stage).header("content-encoding") is None
    assert len(forwarded(stage).json()["messages"]) < len(json.loads(LONG)["messages"])


def test_the_extension_is_taken_out_of_a_packed_body(stage: Stage) -> None:
    document = {**json.loads(SHORT), "model": "scripted-1@mask", "condenser": {"session": "packed"}}
    answer = stage.post(gzip.compress(json.dumps(document).encode()), [("Content-Encoding", "gzip")])
    assert (answer.session, answer.strategy) == ("packed", "mask")
    assert forwarded(stage).json() == {**json.loads(SHORT), "model": "scripted-1"}


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_of_several_members_is_read(encoding: str, stage: Stage) -> None:
    pack = PACKS[encoding]
    packed = pack(LONG[:500]) + pack(b"") + pack(LONG[500:])
    answer = stage.post(packed, [("Content-Encoding", encoding), *controls(session=f"members of {encoding}")])
    assert answer.action == "condensed"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_of_very_many_members_is_refused(encoding: str, stage: Stage) -> None:
    packed = PACKS[encoding](b" ") * 1_000 + PACKS[encoding](SHORT)
    assert_refused(stage.post(packed, [("Content-Encoding", encoding)]), 400)


def test_a_body_that_claims_much_memory_to_be_unpacked_is_refused(stage: Stage) -> None:
    answer = stage.post(zstd_with_window(SHORT, 27), [("Content-Encoding", "zstd")])
    assert_refused(answer, 400)


@pytest.mark.parametrize("how", ["Identity", " identity ", ""])
def test_an_encoding_that_is_none_is_none(how: str, stage: Stage) -> None:
    answer = stage.post(SHORT, [("Content-Encoding", how)])
    assert answer.action == "passed"
    assert forwarded(stage).body == SHORT


@pytest.mark.parametrize("cut", [slice(0, -5), slice(5, None), slice(0, 0)], ids=["an end", "a beginning", "all"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
def test_a_packed_body_that_is_broken_is_refused(encoding: str, cut: slice, stage: Stage) -> None:
    before = len(stage.upstream.journal)
    answer = stage.post(PACKS[encoding](SHORT)[cut], [("Content-Encoding", encoding)])
    assert_refused(answer, 400)
    assert len(stage.upstream.journal) == before


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_body_in_another_encoding_than_it_names_is_refused(encoding: str, stage: Stage) -> None:
    answer = stage.post(SHORT, [("Content-Encoding", encoding)])
    assert_refused(answer, 400)
    assert answer.json()["error"]["message"] == f"The request body is not valid {encoding}."


def test_zeros_behind_a_packed_body_are_padding(stage: Stage) -> None:
    answer = stage.post(gzip.compress(SHORT) + bytes(600), [("Content-Encoding", "gzip")])
    assert (answer.status, answer.action) == (200, "passed")


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
def test_a_small_body_that_stands_for_one_beyond_the_limit_is_refused(encoding: str) -> None:
    bomb = PACKS[encoding](b'{"messages":[{"role":"user","content":"' + b"x" * 4_000_000)
    with proxy_with_upstream(limits={"body": 1_000_000}) as stage:
        answer = stage.post(bomb, [("Content-Encoding", encoding)])
        assert_refused(answer, 413)
        assert answer.json()["error"]["code"] == "body_too_large"
        assert stage.forwarded == []


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
def test_what_a_packed_body_costs_is_in_proportion_to_its_size(encoding: str, stage: Stage) -> None:
    bomb = PACKS[encoding](b'{"messages":[{"role":"user","content":"' + b"x" * 5_000_000 + b'"}]}')
    answer = stage.post(bomb, [("Content-Encoding", encoding)])
    assert_refused(answer, 413)
    assert answer.json()["error"]["param"] == "Content-Encoding"


def test_a_body_in_another_encoding_is_passed_on_unread(stage: Stage) -> None:
    answer = stage.post(b"\x0b\x02\x80{}\x03", [("Content-Encoding", "compress")])
    assert (answer.action, answer.reason) == ("bypassed", "encoded-body")
    assert forwarded(stage).body == b"\x0b\x02\x80{}\x03"


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        (controls(dry_run="true"), "Content-Encoding"),
        (controls(history="append", session="s"), "Content-Encoding"),
        (controls(strategy="no-such"), "X-Condenser-Strategy"),
        ([("X-Condenser-Window", "many")], "X-Condenser-Window"),
    ],
    ids=["dry run", "append", "strategy", "window"],
)
def test_an_unreadable_body_cannot_be_condensed(headers: list[tuple[str, str]], param: str, stage: Stage) -> None:
    before = len(stage.upstream.journal)
    answer = stage.post(b"\x0b\x02\x80{}\x03", [("Content-Encoding", "compress"), *headers])
    assert_refused(answer, 400)
    assert answer.json()["error"]["param"] == param
    assert len(stage.upstream.journal) == before


@pytest.mark.parametrize("name", [name for name in UNREADABLE if name != "extension twice"])
def test_off_passes_on_what_cannot_be_read(name: str, stage: Stage) -> None:
    answer = stage.post(UNREADABLE[name], controls(strategy="off"))
    assert (answer.action, answer.reason) == ("bypassed", "unreadable-body")
    assert forwarded(stage).body == UNREADABLE[name]


BROKEN = b'{"condenser":{},"messages":7,"text":"condenser","condenser":{"session":"s"}}'


@pytest.mark.parametrize("headers", [[], [("Content-Encoding", "gzip")]], ids=["plain", "packed"])
def test_off_passes_unreadable_bodies_without_our_headers(headers: list[tuple[str, str]], stage: Stage) -> None:
    body = gzip.compress(BROKEN) if headers else BROKEN
    answer = stage.post(body, [*headers, *controls(strategy="off")])
    assert answer.reason == "unreadable-body"
    assert forwarded(stage).body == b'{"messages":7,"text":"condenser"}'
    assert forwarded(stage).header("content-encoding") is None
    assert forwarded(stage).header("content-length") == str(len(forwarded(stage).body))


@pytest.mark.parametrize("packed", [SHORT, gzip.compress(SHORT)[:-5], gzip.compress(bytes(10_000_000))])
def test_off_passes_on_what_cannot_be_unpacked(packed: bytes) -> None:
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, limits={"body": 1_000_000}) as proxy:
        upstream.answer(lambda _: completion("Done."))
        stage = Stage(proxy, upstream)
        answer = stage.post(packed, [("Content-Encoding", "gzip"), *controls(strategy="off")])
        assert answer.reason == "unreadable-body"
        assert forwarded(stage).body == packed


@pytest.mark.parametrize(
    "more", [controls(dry_run="true"), controls(history="append", session="s")], ids=["dry run", "append"]
)
def test_off_passes_on_nothing_unread_of_which_more_is_wanted(more: list[tuple[str, str]], stage: Stage) -> None:
    before = len(stage.upstream.journal)
    assert_refused(stage.post(UNREADABLE["two byte order marks"], [*controls(strategy="off"), *more]), 400)
    assert len(stage.upstream.journal) == before


def test_off_passes_on_a_name_that_no_model_has(stage: Stage) -> None:
    body = json.dumps({**json.loads(SHORT), "model": "m" * 1_000}).encode()
    assert_refused(stage.post(body), 400)
    assert stage.post(body, controls(strategy="off")).action == "bypassed"
    assert forwarded(stage).body == body


def test_an_unreadable_body_needs_a_proxy_that_is_off(stage: Stage) -> None:
    body = UNREADABLE["two byte order marks"]
    with running_proxy(stage.upstream.url, strategy="off") as proxy:
        off = Stage(proxy, stage.upstream)
        assert off.post(body).reason == "unreadable-body"
        assert forwarded(stage).body == body
        assert_refused(off.post(body, controls(strategy="mask")), 400)
        assert_refused(off.post(body, [*controls(strategy="off"), ("X-Condenser-Window", "many")]), 400)
