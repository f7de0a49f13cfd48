"""Chat sessions that were stored before there were other protocols go on as they were."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.stage import agent, asked, chat, staged

STORED = Path(__file__).parent / "stored" / "chat.db.gz"
"""A store as the last version wrote it that knew only chat."""
NOW = 1_795_000_000.0
"""The time of its sessions, which would have expired by another clock."""


class Last(NamedTuple):
    """A session: what it is asked next, and what was forwarded last."""

    strategy: str
    continued: list[Mapping[str, Any]]
    asked_session: str | None
    session: str
    condensation: str
    forwarded: int
    """The number of messages."""
    digest: str
    """Of these messages."""


LAST = {
    "chat": Last(
        "extract",
        chat(29),
        "s",
        "s",
        "ca2749e4c334e0af1",
        12,
        "8124d718e1d015c745344b9d5671493d662477b171fa1ffc31006053755879cd",
    ),
    "agent": Last(
        "mask",
        agent(39),
        None,
        "de846ec0ade68a363",
        "ce88315b3bb5a25e3",
        78,
        "f1553d5058f3b7c71ec375d8cc14f4f46df8752f076ae87b72ab9806ae35b045",
    ),
}


@pytest.mark.parametrize("form", LAST)
def test_a_stored_chat_session_is_replayed_byte_for_byte(form: str, tmp_path: Path) -> None:
    file, last = tmp_path / "stored.db", LAST[form]
    file.write_bytes(gzip.decompress(STORED.read_bytes()))
    settings: Any = {"store": {"url": f"sqlite:///{file}"}, "tenant": {"pepper": "k" * 32}}
    with staged(clock=lambda: NOW, strategy=last.strategy, window=4_096, **settings) as stage:
        answer = stage.ask(last.continued, asked(session=last.asked_session))
        assert answer.header("x-condenser-action") == "replayed"
        assert answer.header("x-condenser-session") == last.session
        assert answer.header("x-condenser-condensation") == last.condensation
        beginning = json.dumps(stage.last_view[: last.forwarded], sort_keys=True)
        assert hashlib.sha256(beginning.encode()).hexdigest() == last.digest
