"""The measurement under load: requests that differ where they should, and one round over real processes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from bench.generator import Job, requests
from bench.load import Cell, Row, markdown, measure
from bench.payloads import request_parts
from bench.targets import AWECOMPRESS, DIRECT, NAIVE, targets
from strategies.core.digest import message_digest

CELL = Cell("small", False, "warm")
ROW = Row(str(CELL), "memory", 6_000.0, 0.4, 0.4, 1.0, 0.4, 1.0, 9_000)
DIRECTLY = replace(ROW, target=DIRECT, rate=50_000.0, cpu=None, p50=0.02, first_p50=0.02)
NAIVELY = replace(ROW, target=NAIVE, rate=1_000.0, cpu=1.7, p50=1.0, first_p50=1.0)
PEER = replace(ROW, target=AWECOMPRESS, rate=5_700.0)
EXECUTABLE = 0o755


def parsed(sent: bytes) -> tuple[list[str], dict[str, Any]]:
    """The names of a request's headers and its body."""
    head, _, body = sent.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    return [line.partition(b":")[0].decode() for line in head.splitlines()[1:]], json.loads(body)


def sent_by(job: Job, number: int) -> list[dict[str, Any]]:
    """The bodies of the first so many requests of a job's first connection."""
    return [parsed(sent)[1] for sent in islice(requests(job, 0, count(job.first)), number)]


def digests(payload: str, number: int, *, cold: bool) -> list[bytes]:
    _, body = parsed(request_parts(payload, streamed=False, cold=cold).request(b"s000000000001", number))
    return [message_digest(each) for each in body["messages"]]


def test_a_row_is_a_line_with_ratios_to_other_proxies_and_what_is_added_to_none() -> None:
    head, _, direct, *_, last = markdown([DIRECTLY, NAIVELY, PEER, ROW]).splitlines()
    assert head.startswith("| request | target | a second | x naive | x awecompress | CPU |")
    assert "(0.02 ms)" in direct
    assert last == ("| small, plain, warm | memory | 6,000 | 6.00 | 1.05 | 0.40 ms | 0.38 ms | 0.00 ms | 0.38 ms |")


def test_a_peer_that_is_installed_is_started_with_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / AWECOMPRESS
    listen = "import os, sys; os.chdir(os.environ['AWECOMPRESS_CONFIG_DIR']); from http.server import test"
    script.write_text(f"#!{sys.executable}\n{listen}; test(port=int(sys.argv[sys.argv.index('--port') + 1]))\n")
    script.chmod(EXECUTABLE)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    with targets((), ()) as found:
        assert list(found) == [DIRECT, NAIVE, AWECOMPRESS]
        working = Path(f"/proc/{found[AWECOMPRESS].pid}/cwd").resolve()
        assert working.is_dir()
    assert not working.exists()


@pytest.mark.usefixtures("nothing_installed")
def test_all_targets_are_measured_in_one_run() -> None:
    rows = measure(rounds=1, seconds=0.1, stores=("memory",), only="small, streamed, warm")

    assert {row.target for row in rows} == {DIRECT, NAIVE, "memory"}
    assert all(row.requests > 0 and row.rate > 0 and 0 < row.first_p50 <= row.p50 for row in rows)
    assert [row.cpu is None for row in rows if row.target in (DIRECT, "memory")] == [True, False]
