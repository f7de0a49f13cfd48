"""nginx, Caddy and Envoy in front of the proxy, and Envoy behind it, by what deploy/front/ has; TLS is left out."""

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proxy.settings import load_settings
from tests.deploy import repository
from tests.support import wire
from tests.support.ports import free_port
from tests.support.proxy import proxy_before, running_proxy
from tests.support.recording import CHAT
from tests.support.redis_server import await_true
from tests.support.replies import DONE, error, sse, stream, text_chunks
from tests.support.signals import BOUND, Signal
from tests.support.upstream import ScriptedUpstream

FRONT = repository.ROOT / "deploy" / "front"
FIRST, *REST = text_chunks("one two three")
LONG = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "word " * 100_000}]}).encode()


def nginx(folder: Path, port: int, proxy: str) -> list[str]:
    """The command that runs our server block, in a folder of its own."""
    server = (FRONT / "nginx.conf").read_text()
    server = re.sub(r"\n +ssl_.*", "", server).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "scgi", "uwsgi")
    )
    (folder / "front.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr; events {{}} "
        f"http {{ access_log off; {temporary} {server.replace('127.0.0.1:8484', proxy)} }}"
    )
    return ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "front.conf")]


def caddy(folder: Path, port: int, proxy: str) -> list[str]:
    sites = (FRONT / "Caddyfile").read_text()
    sites = sites.replace("condenser.example.com", f"http://127.0.0.1:{port}").replace("127.0.0.1:8484", proxy)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + sites)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def envoy(folder: Path, port: int, proxy: str) -> list[str]:
    return enveloped(folder, port, free_port(), proxy, proxy)


def envoy_behind(folder: Path, port: int, upstream: str) -> list[str]:
    return enveloped(folder, free_port(), port, "127.0.0.1:9", upstream)


def enveloped(folder: Path, clients: int, models: int, proxy: str, upstream: str) -> list[str]:
    """The command that runs both listeners at these ports, before the proxy and before an upstream without TLS."""
    text = re.sub(r"\n      transport_socket:.*", "\n", (FRONT / "envoy.yaml").read_text(), flags=re.DOTALL)
    for written, used in (("8484", proxy.split(":")[1]), ("443", upstream.split(":")[1])):
        text = text.replace(f"port_value: {written} ", f"port_value: {used} ")
    text = text.replace("port_value: 8000 ", f"port_value: {clients} ").replace(
        "port_value: 9000 ", f"port_value: {models} "
    )
    (folder / "envoy.yaml").write_text(text.replace("address: api.openai.com", "address: 127.0.0.1"))
    return ["envoy", "--concurrency", "1", "--use-dynamic-base-id", "-c", str(folder / "envoy.yaml")]


@contextmanager
def fronted(command: Callable[[Path, int, str], list[str]], folder: Path, proxy: str) -> Iterator[str]:
    port = free_port()
    name, *words = command(folder, port, urlsplit(proxy).netloc)
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"no {name} here")
    with subprocess.Popen([program, *words], stderr=subprocess.DEVNULL, env={"HOME": str(folder)}) as process:
        try:
            await_true(lambda: accepts(port), f"{name} listens", 2 * BOUND)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("command", [nginx, caddy, envoy])
def test_each_event_of_a_stream_passes_when_it_comes(
    command: Callable[[Path, int, str], list[str]], tmp_path: Path
) -> None:
    gate = Signal("the rest of the stream")
    with (
        proxy_before(ScriptedUpstream(), strategy="off") as (upstream, proxy),
        fronted(command, tmp_path, proxy.url) as url,
    ):
        upstream.reply(stream(FIRST, gate, *REST))
        with wire.opened(url, "POST", CHAT, LONG, wire.JSON) as response:
            assert wire.until(response, sse(FIRST)) == sse(FIRST)
            gate.set()
            assert response.read() == b"".join(map(sse, REST)) + DONE


def test_behind_the_proxy_envoy_asks_again_and_passes_each_event_when_it_comes(tmp_path: Path) -> None:
    gate = Signal("the rest of the stream")
    with (
        ScriptedUpstream() as upstream,
        fronted(envoy_behind, tmp_path, upstream.url) as url,
        running_proxy(url, strategy="off") as proxy,
    ):
        upstream.reply(error(503), stream(FIRST, gate, *REST))
        with wire.opened(proxy.url, "POST", CHAT, LONG, wire.JSON) as response:
            assert wire.until(response, sse(FIRST)) == sse(FIRST)
            gate.set()
            assert response.read() == b"".join(map(sse, REST)) + DONE
        assert [each.header("host") for each in upstream.journal] == ["api.openai.com"] * 2


def test_both_pass_bytes_on_as_they_come_and_speak_http_1_1() -> None:
    """The proxy's own header `X-Accel-Buffering` and the type of a stream say so too; not every reply has them."""
    server, sites = (FRONT / "nginx.conf").read_text(), (FRONT / "Caddyfile").read_text()
    for line in ("proxy_buffering off;", "proxy_request_buffering off;", "proxy_http_version 1.1;"):
        assert line in server
    assert {"flush_interval -1", "versions 1.1"} <= {line.strip() for line in sites.splitlines()}


def test_what_they_bound_is_what_the_proxy_bounds() -> None:
    settings = load_settings()
    mebibytes, seconds = settings.limits.body // 2**20, settings.upstream.read_timeout
    for name, size in (("nginx.conf", f"{mebibytes}m;"), ("Caddyfile", f"{mebibytes}MiB")):
        text = (FRONT / name).read_text()
        assert re.findall(r"\S*max\S*size (\S+)", text) == [size]
        assert {float(each) for each in re.findall(r"timeout (\d+)s", text)} == {seconds}
    text = (FRONT / "envoy.yaml").read_text()
    assert re.findall(r"limit_bytes: (\d+)", text) == [str(settings.limits.body)]
    assert {float(each) for each in re.findall(r"idle_timeout: (\d+)s", text)} == {seconds}
