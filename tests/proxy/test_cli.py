"""The commands that run and ask a proxy: what they print and how they end."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from proxy import cli
from proxy.app import server_config
from proxy.commands.probe import counters
from proxy.commands.running import configured_url
from proxy.commands.serve import banner
from proxy.package import VERSION
from proxy.settings import Settings
from proxy.settings.tables import UpstreamSettings
from tests.proxy.command_line import run
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.redis_server import await_true
from tests.support.replies import error, json_reply
from tests.support.signals import BOUND
from tests.support.stage import chat, controls, proxy_with_upstream
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.usefixtures("elsewhere")

# -- the command line --------------------------------------------------------------------------------------


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, f"condenser {VERSION}\n")


@pytest.mark.parametrize("module", ["proxy", "proxy.cli"])
def test_python_runs_it_as_a_module_too(module: str) -> None:
    made = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert made.stdout == f"condenser {VERSION}\n"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"condenser {command}" in out


@pytest.mark.parametrize("words", [(), ("no-such",), ("serve", "--no-such"), ("serve", "--port", "many")])
def test_a_wrong_call_ends_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *words)[0] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "--strategy", "no-such"), "half-window"),
        (("check", "--window", "5"), "window"),
        (("serve", "--port", "99999"), "port"),
        (("check", "--upstream", "ftp://x"), "http://"),
        (("check", "--config", "/no/such/file.toml"), "/no/such/file.toml"),
        (("check", "--upstream", ""), "upstream.base_url"),
        (("check", "--store", ""), "store.url"),
        (("check", "--strategy", ""), "strategy"),
        (("check", "--config", ""), "--config"),
        (("serve", "--host", ""), "host"),
        (("serve", "--upstream", "http://user:pass@h/v1"), "upstream.base_url: must hold no user and no password"),
    ],
)
def test_wrong_settings_end_with_2(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert all(line.startswith("condenser: ") for line in err.splitlines())
    assert says in err
    assert "Traceback" not in err


def test_each_line_says_who_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONDENSER_STOR__URL", "memory://")
    monkeypatch.setenv("CONDENSER_PORT", "many")
    assert run(capsys, "check", "--offline") == (
        2,
        "",
        (
            "condenser: port: must be a valid integer, not 'many' (CONDENSER_PORT)\n"
            "condenser: unknown variable CONDENSER_STOR__URL; did you mean CONDENSER_STORE__URL?\n"
        ),
    )


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("serve", "--bogus"), "--workers"),
        (("sessions", "export", "s", "--bogus"), "--file"),
        (("status", "x"), "--url"),
    ],
)
def test_an_unknown_option_is_named(words: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert f"unrecognized arguments: {words[-1]}" in err
    assert option in err


HEAVY = {
    "asyncio",
    "pydantic",
    "fastapi",
    "starlette",
    "aiohttp",
    "uvicorn",
    "httpx",
    "tiktoken",
    "redis",
    "strategies",
}


@pytest.mark.parametrize("words", ["--version", "--help", "healthcheck --url http://127.0.0.1:9", "healthcheck"])
def test_what_is_asked_often_imports_little(words: str) -> None:
    """Six times the processor time of `import http.client` is allowed; its modules are a measure that does not vary."""
    count = "import sys\nbefore = set(sys.modules)\n{}\nprint(*(set(sys.modules) - before), file=sys.stderr)"
    called = f"from proxy.cli import main\ntry:\n main({words.split()})\nexcept SystemExit: pass"
    plain, ours = (imported(count.format(code)) for code in ("import http.client", called))
    assert ours & HEAVY == set()
    assert len(ours) < 3 * len(plain)


def imported(code: str) -> set[str]:
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(made.stderr.splitlines()[-1].split())


def test_an_action_is_described_by_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\n\nOne session as JSON.\n" in run(capsys, "sessions", "export", "--help")[1]


def test_a_reader_that_wants_no_more_is_no_error_to_tell_of() -> None:
    command = [sys.executable, "-m", "proxy", "check", "--offline", "--store", "memory://", "--model", "gpt-4o"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(BOUND) == 1


# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--upstream", "http://user:hunter2@h/v1"),
        ("check", "--upstream", "http://user:hunter2@h/v1"),
        ("status", "--url", "http://user:hunter2@h"),
        ("healthcheck", "--url", "http://user:hunter2@h"),
    ],
)
def test_passwords_are_never_shown(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert code in (1, 2)
    assert "no user and no password" in err
    assert "hunter2" not in out + err


# -- serve -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "listens", "client"),
    [
        ("127.0.0.1", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"),
        ("0.0.0.0", "http://0.0.0.0:9/v1", "http://127.0.0.1:9/v1"),
        ("::", "http://[::]:9/v1", "http://[::1]:9/v1"),
        ("192.0.2.1", "http://192.0.2.1:9/v1", "http://192.0.2.1:9/v1"),
    ],
)
def test_the_banner_has_an_address_that_a_client_can_use(host: str, listens: str, client: str) -> None:
    lines = banner(Settings(store={"url": "memory://"}, host=host), 9).splitlines()  # type: ignore[arg-type]
    assert lines[0] == f"condenser listens on {listens}"
    assert lines[-1] == f'  client     OpenAI(base_url="{client}")'


def test_the_banner_has_the_line_for_clients_and_no_secret() -> None:
    settings = Settings(store={"url": "redis://:hunter2@h:1/0"}, host="::1", port=0)  # type: ignore[arg-type]
    text = banner(settings, 9)
    assert 'OpenAI(base_url="http://[::1]:9/v1")' in text
    assert "hunter2" not in text
    unchecked = UpstreamSettings.model_construct(base_url="http://user:hunter2@h/v1")
    assert "upstream   http://***@h/v1\n" in banner(settings.model_copy(update={"upstream": unchecked}), 9)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_proxy_on_any_free_port_says_which_one_it_is(workers: str, tmp_path: Path) -> None:
    words = ("serve", "--port", "0", "--workers", workers, "--store", f"sqlite:///{tmp_path}/s.db")
    with subprocess.Popen([sys.executable, "-m", "proxy", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            url = re.fullmatch(r"condenser listens on (http://127\.0\.0\.1:[1-9]\d*)/v1\n", said)
            assert url is not None
            await_true(lambda: cli.main(["healthcheck", "--url", url.group(1)]) == 0, "the proxy answers")
        finally:
            process.terminate()
            process.wait(2 * BOUND)


def test_a_port_that_is_taken_is_not_said_to_be_listened_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("serve", "--port", port, "--store", f"sqlite:///{tmp_path}/s.db")
        made = subprocess.run([sys.executable, "-m", "proxy", *words], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stdout) == (3, "")
    assert made.stderr == (
        f"condenser: port {port} of 127.0.0.1 is taken by another program;"
        " choose another port with --port, or any free one with --port 0\n"
    )


def test_a_host_that_is_not_here_is_refused_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "serve", "--host", "192.0.2.1", "--port", "0", "--store", "memory://")
    assert (code, err.count("192.0.2.1 is no address of this machine")) == (3, 1)


def test_the_server_adds_no_headers_of_its_own_and_trusts_none() -> None:
    config = server_config(Settings(store={"url": "memory://"}))  # type: ignore[arg-type]
    assert (config.date_header, config.server_header, config.proxy_headers) == (False, False, False)
    assert config.access_log is False


# -- status and healthcheck --------------------------------------------------------------------------------


def test_a_healthy_proxy_is_silence(proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "healthcheck", "--url", proxy.url) == (0, "", "")
    assert run(capsys, "healthcheck", "--url", proxy.url + "/") == (0, "", "")


@pytest.mark.parametrize("command", ["healthcheck", "status"])
def test_a_proxy_that_is_not_there_ends_with_1(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command, "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, out) == (1, "")
    assert "no proxy answers" in err


@pytest.mark.parametrize("url", ["nonsense", "http://", "file:///etc/hosts", "http://[::1", "http://h:x", ""])
def test_an_address_that_is_none_ends_with_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"condenser: no proxy answers at {url}: an address has the form http://HOST:PORT\n"
    assert run(capsys, "healthcheck", "--url", url) == (1, "", said.replace("//:", ":"))


def test_what_the_network_said_is_told_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = f"condenser: no proxy answers at {url}: connection refused\n"
    assert run(capsys, "healthcheck", "--url", url) == (1, "", said)
    assert "name or service not known" in run(capsys, "status", "--url", "http://no-such-host.invalid")[2]


def test_a_server_that_speaks_no_http_is_no_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(b"SSH-2.0\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        code, _, err = run(capsys, "healthcheck", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}")
        answering.join()
    assert (code, err.count("what answers there is not a condenser")) == (1, 1)


def test_another_server_is_no_condenser(upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    upstream.answer(lambda request: json_reply({"status": "ok"}))
    code, _, err = run(capsys, "status", "--url", upstream.url)
    assert (code, err) == (1, f"condenser: {upstream.url} is not a condenser\n")


def test_no_other_server_is_taken_for_a_proxy(upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    upstream.answer(lambda request: error(404))
    assert run(capsys, "healthcheck", "--url", upstream.url)[0] == 1


def test_by_default_the_settings_say_where_the_proxy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured_url() == "http://127.0.0.1:8484"
    for host, address in (("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("h", "h")):
        monkeypatch.setenv("CONDENSER_HOST", host)
        monkeypatch.setenv("CONDENSER_PORT", "9")
        assert configured_url() == f"http://{address}:9"


def test_variables_of_the_environment_send_no_health_check_elsewhere(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert run(capsys, "healthcheck", "--url", proxy.url)[0] == 0


def test_the_status_shows_parts_and_counters(capsys: pytest.CaptureFixture[str]) -> None:
    with proxy_with_upstream() as stage:
        stage.ask(chat(12), controls(session="s"))
        code, out, _ = run(capsys, "status", "--url", stage.proxy.url)
    assert code == 0
    assert f"condenser {VERSION}: ok" in out
    assert "upstream    only with admin.token" in out
    assert "store       only with admin.token (ok)" in out
    assert re.search(r'requests\{action="condensed"\} +1\n', out)
    assert re.search(r'tokens\{stage="before"\} +3,8\d\d\n', out)


def test_a_watched_status_is_printed_again_and_again() -> None:
    with proxy_with_upstream() as stage:
        words = [sys.executable, "-m", "proxy", "status", "--watch", "--url", stage.proxy.url]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            titles = (line for line in process.stdout if line.startswith("condenser "))
            seen = [next(titles), next(titles)]
            process.terminate()
    assert seen == [f"condenser {VERSION}: ok\n"] * 2


def test_counters_at_zero_and_other_lines_are_left_out() -> None:
    lines = [
        "# HELP x",
        'condenser_a_total{b="c"} 1234.0',
        'condenser_a_total{b="d"} 0.0',
        "condenser_in_flight 1.0",
        "other_total{} 5",
    ]
    assert list(counters("\n".join(lines))) == ['  a{b="c"}  1,234']


@pytest.mark.parametrize("words", [("sessions", "list"), ("memory", "list", "s")])
@pytest.mark.parametrize("document", [["a"], {}, {"data": []}, "text", None])
def test_what_another_server_answers_is_no_listing(
    words: tuple[str, ...], document: object, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answer(lambda request: json_reply(document))
    ended = run(capsys, *words, "--url", upstream.url, "--token", "t")
    assert ended == (1, "", "condenser: the server at that address is not a condenser\n")


@pytest.mark.parametrize("words", [("sessions", "list"), ("memory", "list", "s")])
def test_an_unexpected_error_of_the_system_is_one_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("proxy.commands.proxy_client.token_for", full)
    assert run(capsys, *words) == (1, "", "condenser: No space left on device\n")
