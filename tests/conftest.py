"""Fixtures of the end-to-end tests: a scripted upstream and the real proxy before it, on real sockets."""

import contextlib
import gc
import importlib
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from proxy.conversations.codec import Records, decode_document
from proxy.conversations.session import Session
from proxy.log import JsonLines, TextLines
from proxy.store.access import decompress
from tests.support.proxy import Proxy, running_proxy
from tests.support.upstream import ScriptedUpstream

# A machine may be busy: no property has to hold within a time.
settings.register_profile("tests", deadline=None, max_examples=25)
settings.register_profile("torture", deadline=None, max_examples=300)
settings.load_profile("tests")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm fetches its price list at import
gc.disable()  # until all is imported: there is nothing to free, and each collection would read all there is


def pytest_collection(session: pytest.Session) -> None:
    """Lets each worker import its share first, so that not every one of them compiles all tests in a fresh clone."""
    count, worker = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "") for name in ("_COUNT", ""))
    if not worker:
        return
    paths = [path for arg in session.config.args for path in (session.config.rootpath / arg).rglob("test_*.py")]
    for path in sorted(paths)[int(worker.removeprefix("gw")) :: int(count)]:
        with contextlib.suppress(Exception):  # which the collection meets again, and tells
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from what was imported: a full collection would stop a test for a second.

    It runs less often than by default, since tests leave little behind.
    """
    gc.set_threshold(20_000)
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def what_is_kept_of_a_written_session_is_what_reading_it_gives(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    others: list[tuple[Session | None, Session]] = []
    wrote = Records.put_session

    def compared(records: Records, meta: bytes, session: Session, size: int) -> None:
        read = decode_document(decompress(meta), records.decoders)
        if read != session._replace(revision=0):
            others.append((read, session))
        wrote(records, meta, session, size)

    monkeypatch.setattr(Records, "put_session", compared)
    yield
    assert others == []


@pytest.fixture(autouse=True)
def the_log_is_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sets up the log of the program."""
    levels = {name: logging.getLogger(name).level for name in (None, "condenser", "proxy")}
    yield
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each.formatter, (JsonLines, TextLines))]
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
def proxy(upstream: ScriptedUpstream) -> Iterator[Proxy]:
    with running_proxy(upstream.url) as running:
        yield running


@pytest.fixture
def proxy_url(proxy: Proxy) -> str:
    """What takes the place of the vendor's address; add `/v1` for a client's `base_url`."""
    return proxy.url
