"""Real processes of condenser serve: one heap for all threads, and what is written when something goes wrong."""

import json
import platform
import sys
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.recording import CHAT
from tests.support.replicas import await_answer, replica
from tests.support.replies import Reply
from tests.support.upstream import ScriptedUpstream

HEAD = (("content-type", "application/json"), ("content-length", "1000"))
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


THREAD_HEAP = 64 * 1024 * 1024
"""What glibc reserves, at a multiple of that, for a heap of a thread: first what is in use, then the rest."""


def thread_heaps(pid: int) -> int:
    """How many heaps of threads a process has."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return sum(
        (used[1], rest[1]) == ("rw-p", "---p")
        and int(used[0].split("-")[0], 16) % THREAD_HEAP == int(rest[0].split("-")[1], 16) % THREAD_HEAP == 0
        for used, rest in pairwise(lines)
    )


def test_each_failure_is_one_warning_and_threads_share_one_heap(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.reply(Reply(200, HEAD, (b'{"id": "x", "cho',), cut=True))
    log = tmp_path / "stderr"
    store = "redis://:hunter2@127.0.0.1:1/0"
    with replica(upstream.base_url, store, "off", 4_096, log, CONDENSER_LOG__FORMAT="json") as (url, process):
        await_answer(url, process)
        with pytest.raises(HTTPException):
            wire.post_json(url, CHAT, HELLO)
        if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":  # another allocator has other heaps
            assert thread_heaps(process.pid) == 0
    said = log.read_text("utf-8")
    warnings = [json.loads(line)["message"] for line in said.splitlines() if '"level": "warning"' in line]
    no_store, no_pepper, failing, cut = warnings
    assert no_store.startswith("the store cannot be reached, ")
    assert no_pepper.startswith("tenant.pepper is not set: ")
    assert "the store fails, and requests are served without it" in failing
    assert "an upstream broke off in the middle of its reply" in cut
    assert "ASGI callable" not in said
    assert "hunter2" not in said
