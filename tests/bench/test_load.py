"""The measurement under load: requests that differ where they should, and one round over real processes."""

import json
import os
import sys
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from bench.load import KINDS, TURNS, measure, rows
from bench.processes import AWECOMPRESS, DIRECT, NAIVE, targets
from bench.stub import REPLY
from bench.traffic import Job, Load, request, requests
from strategies.core.messages import message_digest
from strategies.dialects.chat import CHAT
from tests.support import strict_messages, strict_responses

EXECUTABLE = 0o755


def parsed(sent: bytes) -> tuple[list[str], dict[str, Any]]:
    """The names of a request's headers and its body."""
    head, _, body = sent.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    return [line.partition(b":")[0].decode() for line in head.splitlines()[1:]], json.loads(body)


@pytest.mark.parametrize("payload", ["small", "medium", "large"])
def test_strict_servers_take_the_requests_in_their_protocols(payload: str) -> None:
    for protocol, is_refused in (("messages", strict_messages.refusal_of), ("responses", strict_responses.refusal_of)):
        job = Job(payload, streamed=True, cold=True, protocol=protocol)
        _, body = parsed(request(job, b"s000000000001", 2, [1]))
        assert not is_refused(body)
        assert "conversation s000000000001" in str(body.get("system", body.get("instructions")))


def sent_by(job: Job, number: int) -> list[dict[str, Any]]:
    """The bodies of the first so many requests of a job's first connection."""
    return [parsed(sent)[1] for sent in islice(requests(job, 0, count(job.first)), number)]


def digests(payload: str, number: int, *, cold: bool) -> list[bytes]:
    _, body = parsed(request(Job(payload, cold=cold), b"s000000000001", number))
    return [message_digest(each, CHAT) for each in body["messages"]]


@pytest.mark.parametrize("payload", ["small", "medium", "large"])
def test_warm_requests_differ_in_their_last_message_only(payload: str) -> None:
    warm, next_warm = digests(payload, 1, cold=False), digests(payload, 2, cold=False)
    cold, next_cold = digests(payload, 1, cold=True), digests(payload, 2, cold=True)

    assert warm[:-1] == next_warm[:-1]
    assert warm[-1] != next_warm[-1]
    assert not set(cold) & set(next_cold)


@pytest.mark.parametrize("payload", ["small", "medium", "large"])
def test_a_request_is_what_most_clients_send_and_names_no_session(payload: str) -> None:
    headers, body = parsed(request(Job(payload, streamed=True), b"s000000000001", 1))

    assert headers == ["host", "authorization", "content-type", "content-length"]
    assert body["stream_options"] == {"include_usage": True}
    assert ("tools" in body) == (payload != "small")
    called = {call["id"] for each in body["messages"] for call in each.get("tool_calls", [])}
    assert called == {each["tool_call_id"] for each in body["messages"] if each["role"] == "tool"}


def test_connections_differ_in_the_system_prompt_alone() -> None:
    first, second = (parsed(request(Job("medium"), name, 1))[1]["messages"] for name in (b"s1", b"s2"))

    assert first[0] != second[0]
    assert first[1:] == second[1:]


def test_a_named_request_tells_its_session_in_a_header() -> None:
    sent = request(Job("small", named=True), b"s000000000001", 1)
    assert b"\r\nx-condenser-session: s000000000001\r\n" in sent


def test_a_conversation_grows_until_the_next_one_begins() -> None:
    first, second, third, other = sent_by(Job("small", turns=3), 4)

    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert third["messages"][: len(second["messages"])] == second["messages"]
    assert [each["role"] for each in third["messages"][-3:]] == ["user", "assistant", "user"]
    assert all(each["messages"][-2]["content"].startswith(REPLY) for each in (second, third))
    assert third["messages"][-2] != second["messages"][-2]
    assert len(other["messages"]) == len(first["messages"])


def test_every_kind_of_request_is_measured_plain_and_streamed() -> None:
    states: dict[str, list[str]] = {payload: [] for payload in ("small", "medium", "large")}
    for kind in KINDS:
        payload, _, way = kind.partition(", ")
        states[payload].append(way)
    few = ["plain, warm", "plain, cold", "streamed, warm"]
    assert states["small"] == states["medium"] == few
    assert {*states["large"]} == {*few, "plain, going on", "plain, named", "plain, replay"}


def test_only_the_named_kind_sends_a_session() -> None:
    assert [kind for kind, job in KINDS.items() if job.named] == ["large, plain, named"]
    assert [kind for kind, job in KINDS.items() if job.turns == TURNS] == ["large, plain, going on"]


def test_a_row_has_ratios_to_other_proxies() -> None:
    def loads(number: int, took: float) -> list[tuple[Load, Load]]:
        return [(Load(1.0, [], [0.1] * number), Load(1.0, [took / 2], [took]))]

    found = {DIRECT: loads(50, 0.001), NAIVE: loads(10, 0.005), "memory": loads(20, 0.003)}
    direct, _, last = rows("small, plain, warm", found)
    assert (direct["added"], direct["added to it"]) == (0, 0)
    assert (last["request"], last["target"], last["a second"]) == ("small, plain, warm", "memory", 20)
    assert last["x naive"] == 2
    assert (last["ms"], last["added"], last["added to it"]) == pytest.approx((3, 2, 1))


def test_an_installed_peer_gets_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / AWECOMPRESS
    listen = "import os, sys; os.chdir(os.environ['AWECOMPRESS_CONFIG_DIR']); from http.server import test"
    script.write_text(f"#!{sys.executable}\n{listen}; test(port=int(sys.argv[sys.argv.index('--port') + 1]))\n")
    script.chmod(EXECUTABLE)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    with targets(()) as found:
        assert list(found) == [DIRECT, NAIVE, AWECOMPRESS]
        working = Path(f"/proc/{found[AWECOMPRESS].pid}/cwd").resolve()
        assert working.is_dir()
    assert not working.exists()


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.torture
def test_all_targets_are_measured_in_one_run() -> None:
    found = measure(rounds=1, seconds=0.1, stores=("memory",), only="small, streamed, warm")

    assert {row["target"] for row in found} == {DIRECT, NAIVE, "memory"}
    assert all(row["a second"] > 0 and 0 < row["ms to first byte"] <= row["ms"] for row in found)
