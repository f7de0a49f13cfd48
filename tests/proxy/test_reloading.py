"""Settings that a running proxy reads again: a real one with two workers."""

import os
import signal
from hashlib import sha256
from pathlib import Path

import pytest

from proxy.commands.serve import Rereading
from proxy.settings import Settings, load_settings
from proxy.settings.reloading import taken_over, waiting
from tests.proxy.command_line import run
from tests.proxy.test_workers import FIRST, STREAM, answers, serving, workers
from tests.support import wire
from tests.support.recording import CHAT
from tests.support.redis_server import await_true
from tests.support.replies import sse, stream
from tests.support.signals import BOUND, Signal
from tests.support.upstream import ScriptedUpstream

HI = b'{"model":"scripted-1","messages":[{"role":"user","content":"hi"}]}'


def write(file: Path, upstream: str, *keys: str, window: int, more: str = "") -> None:
    entries = "".join(f'[[auth.keys]]\nname = "{key}"\nsha256 = "{sha256(key.encode()).hexdigest()}"\n' for key in keys)
    file.write_text(
        f'{more}\n[store]\nurl = "sqlite:///{file.parent}/s.db"\n[auth]\nmode = "keys"\n{entries}'
        f'[upstream]\nbase_url = "{upstream}"\napi_key = "sk-operator"\n'
        f'[[models]]\nmatch = "scripted-*"\nwindow = {window}\n'
    )


def asked(url: str, key: str, model: str = "scripted-1") -> set[tuple[int, str | None]]:
    """What some requests with a key get, each by a connection of its own: a status and a window."""
    headers, body = [*wire.JSON, ("x-api-key", key)], HI.replace(b"scripted-1", model.encode())
    found = [wire.request(url, "POST", CHAT, body, headers) for _ in range(8)]
    return {(answer.status, answer.window) for answer in found}


@pytest.mark.usefixtures("elsewhere")
def test_settings_read_again_hold_in_all_workers_which_a_second_signal_ends_at_once(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_DRAIN__TIMEOUT", "600")
    file, to, said = tmp_path / "condenser.toml", upstream.base_url, tmp_path / "stderr"
    write(file, to, "anna", window=8_000)
    with said.open("wb") as log, serving("--config", str(file), log=log) as (url, process):
        await_true(lambda: answers(url), "a worker answers", 4 * BOUND)
        assert asked(url, "anna") == {(200, "8000")}
        assert asked(url, "ben") == {(401, None)}
        file.with_name("models.toml").write_text('made = 2999-01-01\n[models]\n"novel" = { window = 5000 }\n')
        write(file, to, "ben", window=16_000, more="inline_timeout = 7.0")
        code, out, err = run(capsys, "reload", "--url", url)
        assert (code, err) == (0, "")
        assert out.endswith("reloaded: keys 1, models 1, log level info; after a restart: inline_timeout\n")
        await_true(lambda: asked(url, "ben") == {(200, "16000")}, "all workers know the new key and window", BOUND)
        assert asked(url, "ben", "novel") == {(200, "5000")}
        assert asked(url, "anna") == {(401, None)}
        write(file, to, "anna", window=-1)
        code, out, err = run(capsys, "reload", "--url", url)
        assert (code, out) == (1, "")
        assert "not reloaded, because they have an error: models.0.window" in err
        assert asked(url, "ben") == {(200, "16000")}
        dead, other = workers(process)
        os.kill(dead, signal.SIGKILL)
        await_true(lambda: len(workers(process) - {dead, other}) == 1, "another worker", 2 * BOUND)
        os.kill(other, signal.SIGSTOP)  # so that the new one answers
        try:
            await_true(lambda: answers(url), "the new worker answers", 2 * BOUND)
            assert asked(url, "ben") == {(200, "16000")}
        finally:
            os.kill(other, signal.SIGCONT)
        upstream.reply(stream(FIRST, Signal()))
        with wire.opened(url, "POST", CHAT, STREAM, [*wire.JSON, ("x-api-key", "ben")]) as response:
            assert wire.until(response, sse(FIRST)) == sse(FIRST)
            process.terminate()
            await_true(lambda: "shutting down" in said.read_text("utf-8"), "the proxy drains")
            process.terminate()
            assert process.wait(2 * BOUND) == 0
    assert said.read_text("utf-8").count("were reloaded") == 1
    assert run(capsys, "reload", "--url", url)[0] == 1


@pytest.mark.usefixtures("elsewhere")
def test_models_at_an_upstream_that_is_not_there_yet_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    one, two = ({"name": name, "base_url": f"http://{name}/v1", "api_key": "sk-operator"} for name in ("one", "two"))
    running, used = load_settings(upstreams=[one]), list[Settings]()
    models = [{"match": "*", "summarizer": {"model": "small", "upstream": "two"}}]
    Rereading({"upstreams": [one, two], "models": models}, running)(running, used.append)
    assert not used
    assert "not reloaded, because they have an error: models[0].summarizer.upstream must be one of one" in caplog.text


def test_a_broken_table_of_models_leaves_everything_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CONDENSER_CONFIG", str(tmp_path / "condenser.toml"))
    (tmp_path / "condenser.toml").touch()
    (tmp_path / "models.toml").write_text("models = 3")
    running, used = load_settings(), list[Settings]()
    Rereading({}, running)(running, used.append)
    assert not used
    assert "not reloaded, because they have an error: the table of models cannot be read" in caplog.text


def test_keys_stay_where_the_settings_turn_them_on_or_off() -> None:
    key = {"name": "anna", "sha256": "0" * 64}
    upstream = {"base_url": "http://h/v1", "api_key": "sk-operator"}
    keyed = load_settings(upstream=upstream, auth={"mode": "keys", "keys": [key]})
    plain = load_settings(upstream=upstream, log={"level": "debug"})
    after = taken_over(keyed, plain)
    assert (after.auth, after.log.level) == (keyed.auth, "debug")
    assert waiting(keyed, plain) == ["auth.mode"]
