"""What `condenser serve` writes to standard error when something goes wrong."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.recording import CHAT
from tests.support.replicas import await_answer, replica
from tests.support.replies import Reply
from tests.support.upstream import ScriptedUpstream

HEAD = (("content-type", "application/json"), ("content-length", "1000"))
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(("form", "level"), [("text", " WARNING request "), ("json", '"level": "warning"')])
def test_a_cut_reply_is_one_warning(form: str, level: str, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.reply(Reply(200, HEAD, (b'{"id": "x", "cho',), cut=True))
    log = tmp_path / "stderr"
    with replica(upstream.base_url, "memory://", "off", 4_096, log, CONDENSER_LOG__FORMAT=form) as (url, process):
        await_answer(url, process)
        with pytest.raises(HTTPException):
            wire.post_json(url, CHAT, HELLO)
    said = log.read_text("utf-8")
    assert said.count("an upstream broke off in the middle of its reply") == 1
    assert level in said
    assert "ASGI callable" not in said


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, ["the store cannot be reached, ", "tenant.pepper is not set: "]),
        ({"CONDENSER_TENANT__PEPPER": "p"}, ["the store cannot be reached, "]),
        (
            {
                "CONDENSER_STORE__URL": "memory://",
                "CONDENSER_HOST": "0.0.0.0",
                "CONDENSER_OPEN_TO_ALL": "true",
                "CONDENSER_UPSTREAM__API_KEY": "sk-hunter2",
            },
            ["anyone who reaches 0.0.0.0:"],
        ),
    ],
    ids=["no store, no pepper", "no store", "open to all"],
)
def test_what_may_do_harm_is_a_warning_each_when_the_proxy_starts(
    settings: dict[str, str], warned: list[str], upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    log = tmp_path / "stderr"
    store = settings.get("CONDENSER_STORE__URL", "redis://:hunter2@127.0.0.1:1/0")
    with replica(upstream.base_url, store, "off", 4_096, log, **settings) as (url, process):
        await_answer(url, process)
    lines = [line.split(" ", 2)[2] for line in log.read_text("utf-8").splitlines() if " WARNING " in line]
    assert len(lines) == len(warned), lines
    for line, beginning in zip(lines, warned, strict=True):
        assert line.startswith(beginning)
        assert "hunter2" not in line
