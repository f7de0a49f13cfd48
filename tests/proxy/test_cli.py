"""The commands that run and ask a proxy: what they print and how they end."""

import json
import re
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from proxy import VERSION, cli
from proxy.app import server_config
from proxy.commands.running import Note, configured_url, noted
from proxy.commands.serve import banner, with_token
from proxy.conversations.totals import NONE
from proxy.settings import Settings
from proxy.settings.token import admin_token
from strategies import TABLE
from tests.proxy.command_line import run
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.replies import error, json_reply
from tests.support.signals import BOUND
from tests.support.stage import chat, controls, proxy_with_upstream
from tests.support.upstream import ScriptedUpstream

ROOT = Path(__file__).parents[2]
DEFAULT = "http://127.0.0.1:8484"
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize("module", ["proxy", "proxy.cli"])
def test_python_runs_it_as_a_module_too(module: str) -> None:
    made = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert made.stdout == f"condenser {VERSION}\n"


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_every_help_has_examples_that_can_be_given(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *command.split(), "--help")
    assert (code, run(capsys, "help", *command.split())) == (0, (0, out, ""))
    actions = re.findall(r"^    ([a-z]+) ", out.partition("\nactions:\n")[2], re.MULTILINE)
    for action in ("", *actions):
        words = [*command.split(), *action.split()]
        out = run(capsys, *words, "--help")[1]
        assert out.startswith(f"usage: {' '.join(['condenser', *words])} ")
        examples = re.findall(r"^  (condenser .+)$", out.partition("\nexamples:\n")[2], re.MULTILINE)
        assert examples
        assert [cli.parse(shlex.split(example)[1:]) for example in examples if " help " not in example]
        page = re.search(r"\ndocumentation:\n  (/\S+\.md)\S*\n$", out)
        assert page is not None
        assert Path(page[1]).is_file()
    assert "\n\nOne session as JSON.\n" in run(capsys, "sessions", "export", "--help")[1]


def test_what_only_a_container_asks_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "healthcheck" not in run(capsys, "--help")[1]


@pytest.mark.parametrize("words", [["--help"], ["serve"]])
def test_a_system_without_locks_is_told_what_to_use(words: list[str]) -> None:
    """Windows has no `fcntl`."""
    code = f"import sys; sys.modules['fcntl'] = None; from proxy.cli import main; sys.exit(main({words}))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stdout) == (1, "")
    assert made.stderr == (
        "condenser runs on Linux and macOS; on Windows, run it in WSL or in a container"
        f" ({ROOT}/docs/reference/commands.md#windows)\n"
    )


@pytest.mark.parametrize("words", [(), ("no-such",), ("serve", "--no-such"), ("serve", "--port", "many")])
def test_a_wrong_call_ends_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *words)
    assert (code, "serve" in err) == (2, True)


@pytest.mark.parametrize(("word", "meant"), [("sesions", "sessions"), ("healthchek", ""), ("stop", "")])
def test_a_misspelt_command_is_asked_for(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, word, "list")
    assert (code, out) == (2, "")
    said = f"did you mean {meant}?" if meant else "known are serve, wrap, "
    assert err.startswith(f"condenser: there is no command {word}; {said}")
    assert "healthcheck" not in err.partition(";")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_gets_what_completes_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert all(f"_{name}" in out for name in cli.COMMANDS if name != "healthcheck")
    assert {"--handles", "--economy"} <= set(re.findall(r"--[a-z]+", out))
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=out, text=True, check=True)


def test_help_of_a_strategy_names_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    said = " ".join(run(capsys, "serve", "--help")[1].replace("-\n", "-").split())
    assert all(name in said for name in TABLE)


def test_nothing_counted_is_zeros_in_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        proxy_with_upstream(admin={"token": "of-the-test"}) as stage,
        noted(Note(stage.proxy.url, DEFAULT, None, 1.0, token="of-the-test")),
    ):
        status = json.loads(run(capsys, "status", "--json")[1])
        doctor = json.loads(run(capsys, "doctor", "--json")[1])
        stage.ask(chat(2))
        stage.proxy.quiet()
        after = json.loads(run(capsys, "doctor", "--json")[1])
    assert (status["sums"]["hours"], status["sums"]["total"]) == (24, NONE)
    assert (doctor["total"], doctor["arrivals"]) == (NONE, [])
    assert (after["total"]["requests"], after["total"]["rescued"]) == (1, 0)
    assert {"window", "trigger", "fullest"} <= set(after["arrivals"][0])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "--upstream", "127.0.0.1:8000"), "did you mean http://127.0.0.1:8000/v1?"),
        (("check", "--upstream", "localhost:8000/v1/"), "did you mean http://localhost:8000/v1?"),
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
    said = (
        "condenser: port: must be a valid integer, not 'many' (CONDENSER_PORT)\n"
        "condenser: unknown variable CONDENSER_STOR__URL; did you mean CONDENSER_STORE__URL?\n"
    )
    assert run(capsys, "check", "--offline") == (2, "", said)


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


LIBRARIES = {"asyncio", "pydantic", "fastapi", "starlette", "aiohttp", "uvicorn", "httpx", "tiktoken", "redis"}
HEAVY = {*LIBRARIES, "strategies"}


@pytest.mark.parametrize("words", ["--version", "--help", "healthcheck --url http://127.0.0.1:9", "healthcheck"])
def test_what_is_asked_often_imports_little(words: str) -> None:
    """Six times the processor time of `import http.client` is allowed; its modules are a measure that does not vary."""
    count = "import sys\nbefore = set(sys.modules)\n{}\nprint(*(set(sys.modules) - before), file=sys.stderr)"
    called = f"from proxy.cli import main\ntry:\n main({words.split()})\nexcept SystemExit: pass"
    plain, ours = (imported(count.format(code)) for code in ("import http.client", called))
    assert ours & HEAVY == set()
    assert len(ours) < 3 * len(plain)


def test_a_status_loads_nothing_that_draws_or_serves() -> None:
    words = ["status", "--url", "http://127.0.0.1:9"]
    loaded = imported(f"import sys\nfrom proxy.cli import main\nmain({words})\nprint(*sys.modules, file=sys.stderr)")
    assert loaded & {"jinja2", *LIBRARIES} <= {"asyncio", "pydantic"}


def imported(code: str) -> set[str]:
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(made.stderr.splitlines()[-1].split())


def test_a_reader_that_wants_no_more_is_no_error_to_tell_of() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "proxy", "keys", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(BOUND) == 1


def test_passwords_are_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("serve", "--upstream"), ("check", "--upstream"), ("status", "--url"), ("healthcheck", "--url")
    for words in asked:
        code, out, err = run(capsys, *words, "http://user:hunter2@h/v1")
        assert code in (1, 2)
        assert "no user and no password" in err
        assert "hunter2" not in out + err


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


def test_the_banner_has_an_address_for_clients_and_no_secret() -> None:
    settings = Settings(store={"url": "redis://:hunter2@h:1/0"}, host="::1", port=0)  # type: ignore[arg-type]
    text = banner(settings, 9)
    assert 'OpenAI(base_url="http://[::1]:9/v1")' in text
    assert "hunter2" not in text


def test_replicas_with_one_pepper_have_one_token_and_others_a_token_of_their_own() -> None:
    def token(pepper: str | None) -> str | None:
        tenant = {"pepper": pepper} if pepper else {}
        return admin_token(with_token(Settings(store={"url": "redis://h:1/0"}, tenant=tenant)))  # type: ignore[arg-type]

    assert token("a long pepper") == token("a long pepper") != token("another pepper")
    assert token(None) != token(None)


def test_the_address_that_serve_prints_signs_in() -> None:
    port = free_port()
    words = ("serve", "--port", str(port), "--store", "memory://", "--single-user")
    with subprocess.Popen([sys.executable, "-m", "proxy", *words], stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            address = next(line.split()[-1] for line in serving.stdout if "dashboard" in line)
            statuses = [httpx.get(address).status_code for _ in range(2)]
        finally:
            serving.terminate()
    assert statuses == [303, 401]


def test_a_port_that_is_taken_is_not_said_to_be_listened_on(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run(capsys, "serve", "--port", port, "--store", "memory://")
    said = (
        f"condenser: port {port} of 127.0.0.1 is taken by another program;"
        " choose another port with --port, or any free one with --port 0\n"
    )
    assert ended == (3, "", said)


def test_a_host_of_another_machine_is_refused_and_no_header_added(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "serve", "--host", "192.0.2.1", "--port", "0", "--store", "memory://")
    assert (code, err.count("192.0.2.1 is no address of this machine")) == (3, 1)
    config = server_config(Settings(store={"url": "memory://"}))  # type: ignore[arg-type]
    assert (config.date_header, config.server_header, config.proxy_headers) == (False, False, False)
    assert config.access_log is False


def test_a_healthy_proxy_is_silence(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # sends no health check elsewhere
    assert run(capsys, "healthcheck", "--url", proxy.url) == (0, "", "")
    assert run(capsys, "healthcheck", "--url", proxy.url + "/") == (0, "", "")


def test_an_address_that_is_none_or_answers_nothing_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ["nonsense", "http://", "file:///etc/hosts", "http://[::1", "http://h:x", ""]:
        said = f"condenser: no proxy answers at {url}: an address has the form http://HOST:PORT\n"
        assert run(capsys, "healthcheck", "--url", url) == (1, "", said.replace("//:", ":"))
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
    upstream.answer(lambda request: error(404))
    assert run(capsys, "healthcheck", "--url", upstream.url)[0] == 1


def test_by_default_the_settings_say_where_the_proxy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured_url() == "http://127.0.0.1:8484"
    for host, address in (("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("h", "h")):
        monkeypatch.setenv("CONDENSER_HOST", host)
        monkeypatch.setenv("CONDENSER_PORT", "9")
        assert configured_url() == f"http://{address}:9"


def test_the_status_tells_in_sentences_what_the_documents_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with proxy_with_upstream(admin={"token": "t" * 16}) as stage:
        stage.ask(chat(12), controls(session="s"))
        stage.proxy.served()
        stranger = run(capsys, "status", "--url", stage.proxy.url)[1]
        monkeypatch.setenv("CONDENSER_ADMIN__TOKEN", "t" * 16)
        code, out, _ = run(capsys, "status", "--url", stage.proxy.url)
        found = json.loads(run(capsys, "status", "--json", "--url", stage.proxy.url)[1])
    assert code == 0
    assert out.startswith(f"Condenser {VERSION} at {stage.proxy.url} is ready; its strategy is ")
    assert f"\nIt sends requests to {found['ready']['upstream']}.\n" in out
    assert "\nSessions are kept in memory://, which works.\n" in out
    assert "\nThe last 24 hours: 0 of 1 requests fitted only because they were condensed; 0 failed." in out
    assert f"\nKnown of {found['known']['data'][0]['model']}: window " in out
    saved = sum(row["saved_tokens"] for row in found["sums"]["data"])
    assert saved > 0
    assert f"\nIt saved {saved:,} tokens on requests that would have fitted anyway; " in out
    assert "\nWhat came in is shown only with the proxy's admin token. " in stranger
    assert "It sends requests to" not in stranger


def test_a_watched_status_is_printed_again_and_again() -> None:
    with proxy_with_upstream() as stage:
        words = [sys.executable, "-m", "proxy", "status", "--watch", "--url", stage.proxy.url]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            titles = (line for line in process.stdout if line.startswith("Condenser "))
            seen = [next(titles), next(titles)]
            process.terminate()
    assert all(" is ready;" in line for line in seen)


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
