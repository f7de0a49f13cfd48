"""`condenser check`: what it looks at, what it prints of a model, and that it changes nothing where it must not."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.numbers import CheckedModel, numbers
from proxy.commands.running import HOST, PORT, Note, client_url, noted
from proxy.settings import Settings
from proxy.store import open_store
from tests.proxy.command_line import run
from tests.proxy.servers import pages
from tests.support.admin_api import TOKEN
from tests.support.proxy import running_proxy
from tests.support.recording import Exchange
from tests.support.replies import Reply, error, json_reply, overflow
from tests.support.stage import MODEL, Stage, chat, count
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.usefixtures("elsewhere")


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[tuple[str, str, str]]]:
    """The exit status, and name, level and text of each finding."""
    code, out, _ = run(capsys, "check", "--json", *words)
    document = json.loads(out)
    assert document["ok"] is (code == 0)
    return code, [(each["name"], each["level"], each["text"]) for each in document["findings"]]


def test_a_check_covers_all_parts(upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--upstream", upstream.base_url, "--store", "memory://")
    code, found = check(capsys, *words)
    assert code == 0
    assert found == [
        ("settings", "ok", "The settings are valid."),
        ("store", "ok", "Sessions are kept in memory://, which works."),
        ("memory-store", "note", "Sessions are kept in memory, so the proxy forgets them when it stops."),
        ("tokenizer", "ok", "Tokenizer cl100k_base: ready, loaded when it is first needed."),
        ("tokenizer", "ok", "Tokenizer o200k_base: ready, loaded when it is first needed."),
        ("upstream", "ok", f"{upstream.base_url} answers 200."),
        ("server", "ok", f"{upstream.base_url} reports no context length, or only with a credential."),
    ]
    printed = run(capsys, "check", *words)[1]
    assert printed.startswith("ok     The settings are valid.\nok     Sessions are kept in memory://, which works.\n")
    assert printed.endswith("\nNothing is wrong.\n")


def test_a_check_as_json_has_the_numbers_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", "--upstream", "http://127.0.0.1:9/v1", "--store", "memory://", "--model", "gpt-4o")
    (code, out, _), (same, told, _) = run(capsys, *words), run(capsys, *words, "--json")
    found = json.loads(told)
    assert (code, same, found["object"], found["ok"]) == (1, 1, "check", False)
    assert "\n1 thing to mend.\nmodel       gpt-4o\n" in out
    assert [each["name"] for each in found["findings"] if each["level"] == "wrong"] == ["upstream"]
    assert found["model"] == "gpt-4o"
    [trigger] = [each for each in found["numbers"] if each["name"] == "trigger"]
    assert trigger["text"].startswith(f"{trigger['value']:,} (")
    assert f"\n  trigger   {trigger['text']}\n" in out


def test_an_upstream_that_wants_a_key_is_well(upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    upstream.answer(lambda request: error(401))
    code, out, _ = run(capsys, "check", "--upstream", upstream.base_url, "--store", "memory://")
    assert code == 0
    assert "callers send" in out


@pytest.mark.parametrize(
    ("status", "says"), [(401, "answers 401: it refuses the api_key of 'upstream'."), (503, "answers 503.")]
)
def test_an_upstream_that_refuses_the_key_or_fails_is_not_well(
    status: int,
    says: str,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY", "sk-operator")
    upstream.answer(lambda request: error(status))
    code, out, _ = run(capsys, "check", "--upstream", upstream.base_url, "--store", "memory://")
    assert code == 1
    assert says in out
    assert upstream.journal.only("/v1/models").header("authorization") == "Bearer sk-operator"


def test_each_of_several_upstreams_is_asked_and_named(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [
        {"name": "here", "base_url": upstream.base_url, "models": ["h-*"]},
        {"name": "gone", "base_url": "http://127.0.0.1:9/v1"},
    ]
    monkeypatch.setenv("CONDENSER_UPSTREAMS", json.dumps(named))
    code, found = check(capsys, "--store", "memory://")
    assert code == 1
    assert ("upstream", "ok", f"here: {upstream.base_url} answers 200.") in found
    assert (
        "upstream",
        "wrong",
        "gone: http://127.0.0.1:9/v1: The upstream cannot be reached: connection refused.",
    ) in found


def test_an_upstream_that_is_not_there_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--upstream", "http://127.0.0.1:9/v1", "--store", "memory://")
    code, found = check(capsys, *words)
    assert code == 1
    assert ("upstream", "wrong", "http://127.0.0.1:9/v1: The upstream cannot be reached: connection refused.") in found
    assert check(capsys, *words, "--offline")[0] == 0


def test_a_store_or_key_that_cannot_be_opened_fails_the_check(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, "check", "--offline", "--store", "redis://u:hunter2@127.0.0.1:9/0")
    assert code == 1
    told = "wrong  Sessions cannot be kept in redis://***@127.0.0.1:9/0: store-unavailable: Connection refused.\n"
    assert f"{told}       Do this: start its server, or correct store.url.\n" in out
    assert out.count("127.0.0.1:9/0") == 1
    assert "hunter2" not in out + err
    (tmp_path / "s.db").write_bytes(b"this is no database" * 100)
    code, found = check(capsys, "--offline", "--store", f"sqlite:///{tmp_path / 's.db'}")
    assert code == 1
    assert [": store-" in text for name, _, text in found if name == "store"] == [True]


def test_a_store_that_cannot_be_read_keeps_no_upstream_from_being_asked(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"/v1/models": pages.OLLAMA, "/api/ps": pages.OLLAMA_PS}
    upstream.answer(lambda exchange: json_reply(said.get(exchange.path, {})))
    (tmp_path / "s.db").write_bytes(b"this is no database" * 100)
    store = f"sqlite:///{tmp_path / 's.db'}"
    words = ("--upstream", upstream.base_url, "--store", store, "--model", "gemma4")
    code, found = check(capsys, *words)
    assert code == 1
    assert [name for name, level, _ in found if level == "wrong"] == ["store"]
    assert found[-2:] == [
        ("upstream", "ok", f"{upstream.base_url} answers 200."),
        ("server", "ok", f"{upstream.base_url} is Ollama."),
    ]
    assert "  window    4,096 (stated by Ollama)\n" in run(capsys, "check", *words)[1]


def test_a_check_offline_makes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "s.db"
    code, found = check(capsys, "--offline", "--store", f"sqlite:///{file}", "--model", "gpt-4o")
    assert code == 0
    text = f"Sessions are kept in sqlite:///{file}, a file that does not exist yet; `serve` makes it."
    assert ("store", "ok", text) in found
    assert not list(tmp_path.iterdir())
    asyncio.run(a_store_at(tmp_path / "s.db"))
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    found = check(capsys, "--offline", "--store", f"sqlite:///{tmp_path}/s.db")[1]
    assert ("store", "ok", f"Sessions are kept in sqlite:///{tmp_path}/s.db, which works.") in found
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


async def a_store_at(file: Path) -> None:
    await (await open_store(f"sqlite:///{file}")).close()


def test_a_check_makes_the_store_that_serve_would(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("check", "--upstream", upstream.base_url, "--store", f"sqlite:///{tmp_path}/new/s.db")
    assert run(capsys, *words)[0] == 0
    assert {each.name for each in (tmp_path / "new").iterdir()} == {"s.db", "tenant.key", "admin.token"}


def test_a_rank_file_that_is_missing_is_reported_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONDENSER_TOKENIZER__RANKS_DIR", str(tmp_path))
    code, found = check(capsys, "--offline", "--store", "memory://")
    assert code == 1
    (level, first), (_, second) = [(level, text) for name, level, text in found if name == "tokenizer"]
    assert level == "wrong"
    assert first == (
        f"Tokenizer cl100k_base: {tmp_path}/cl100k_base.tiktoken cannot be read: No such file or directory;"
        " install condenser-proxy again (in a checkout: `make ranks`),"
        " or point tokenizer.ranks_dir at a folder that has it."
    )
    assert second.startswith(f"Tokenizer o200k_base: {tmp_path}/")


def test_an_unreadable_key_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tenant.key").mkdir()
    code, found = check(capsys, "--upstream", "http://127.0.0.1:9/v1", "--store", f"sqlite:///{tmp_path}/s.db")
    assert code == 1
    [text] = [text for name, level, text in found if (name, level) == ("store", "wrong")]
    assert text.endswith(f": {tmp_path}/tenant.key: Is a directory.")


def budget(model: str = "m", **settings: Any) -> str:
    return "".join(f"{each.line}\n" for each in numbers(CheckedModel(Settings(**settings), model)))


def test_a_check_of_a_model_prints_numbers_with_their_origin() -> None:
    assert budget(window=32_768).splitlines() == [
        "  window    32,768 (settings)",
        "  reserve   4,096 (an eighth of the window, at most 4,096; unless the request sets its reply's length)",
        "  usable    28,672 (what is left of the window)",
        "  prepare   20,070 (0.7 of usable, default)",
        "  trigger   24,371 (0.85 of usable, default)",
        "  target    14,336 (0.5 of usable, default)",
        "  step      4,300 (0.15 of usable, default)",
        "  hard      less than 512 of the window left (a sixteenth of it, at most 512)",
        "  record    3,276 at most (a tenth of the window, or a quarter up to 2,000)",
        "  task      2,000 of the first user message, more if there is room (an eighth of the window)",
        "  said      1,000 at most (default)",
        "  names     700 at most (default)",
        "  strategy  mask+extract (default)",
        "    mask.keep = 3 (default)",
        "    mask.min_tokens = 60 (default)",
        "    mask.min_chars = 400 (default)",
        "    mask.paths = 11,468 (0.4 of usable, default)",
        "    extract.max_tokens = 1,200 (default)",
        "    extract.depth = 8,601 (0.3 of usable, default)",
        "  economy   advise (default)",
        "  prices    input 1, cached 0.1, cache write 1, output 5 (ratios that most vendors share)",
    ]


def test_a_check_shows_published_and_set_prices_and_economy() -> None:
    text = budget("kimi-k2.6", window=262_144)
    assert "input 0.95, cached 0.16, cache write 0.95, output 4 (bundled table, US dollars per million tokens)" in text
    models = ({"match": "m", "prices": {"input": 2.0}},)
    assert "input 2, cached 2, cache write 2, output 0 (settings for 'm')" in budget(window=32_768, models=models)
    assert "economy" not in budget(window=32_768, strategy="off")


def test_options_are_shown_clamped_and_by_their_mode() -> None:
    text = budget(window=8_000, strategy="rolling", rolling={"memory_top_k": 9})
    bound = "what frame, ledger and record may have in that window"
    assert f"rolling.summary_max_tokens = 800 ({bound}, clamped from 1,200, default)" in text
    assert "rolling.memory_max_tokens = 500 (a sixteenth of the window, clamped from 800, default)" in text
    assert "rolling.memory_top_k = 9 (settings)" in text
    assert re.search(r"trigger +5,400 \(0\.7714 of usable, of rolling\)", text)
    assert re.search(r"target +4,200 \(0\.6 of usable, of rolling\)", text)
    text = budget(window=8_000, strategy="dynacontext", dynacontext={"mode": "refer", "tail": "keep"})
    assert "dynacontext.on_drift = 'rollback' (by its mode)" in text
    assert "dynacontext.tail = 'keep' (settings)" in text
    assert "condenses nothing under a strategy that judges" in text


def test_a_number_is_shown_as_it_is_used_with_its_origin() -> None:
    models = [{"match": "m", "reserve": 6_000}]
    assert "reserve   4,000 (settings for the model, clamped from 6,000;" in budget(window=8_000, models=models)
    assert "reserve   2,000 (settings;" in budget(window=8_000, marks={"reserve": 2_000})
    text = budget(window=32_768, marks={"trigger": 0.5, "target": 0.9})
    assert re.search(r"trigger +14,336 \(0\.5 of usable, settings\)", text)
    assert re.search(r"target +11,468 \(0\.4 of usable, settings, clamped from 0\.9\)", text)
    text = budget(window=8_000, models=[{"match": "m", "marks": {"step": 0.3}, "strategy": "recent"}])
    assert "0.3 of usable, settings for the model" in text
    assert "strategy  recent (settings for the model)" in text
    assert "  window    unknown\n" in budget("nobody-knows-it")


def test_a_check_asks_for_a_models_window(upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"/v1/models": pages.OLLAMA, "/api/ps": pages.OLLAMA_PS}
    upstream.answer(lambda exchange: json_reply(said.get(exchange.path, {})))
    words = ("check", "--upstream", upstream.base_url, "--store", "memory://", "--model", "gemma4")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert f"ok     {upstream.base_url} is Ollama.\n" in out
    assert re.search(r"^ +window +4,096 \(stated by Ollama\)$", out, re.MULTILINE)
    code, out, _ = run(capsys, *words, "--offline")
    assert "note   The window of gemma4 is unknown. Below 200,000 tokens (marks.most)" in out
    assert "  window    unknown\n" in out


@pytest.mark.parametrize("listed", [32_768, None])
def test_a_check_prints_the_window_that_holds_in_a_proxy_that_runs_and_why(
    listed: int | None, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(exchange: Exchange) -> Reply | None:
        if exchange.method == "GET":
            served = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": listed}
            return json_reply({"data": [served] if listed else []})
        return overflow(2_048, used) if (used := count(exchange.json())) > 2_048 else None

    upstream.answer(answer)
    settings: dict[str, Any] = {"strategy": "recent", "admin": {"token": TOKEN}, "upstream": {"discover": True}}
    words = ("check", "--upstream", upstream.base_url, "--store", "memory://", "--model", MODEL)
    with running_proxy(upstream.url, **settings) as proxy:
        stage = Stage(proxy, upstream)
        for _ in range(2):  # the first is sent before the server is asked
            stage.ask(chat(40))
            proxy.quiet()
        with noted(Note(proxy.url, client_url(HOST, PORT), None, 0.0, token=TOKEN)):
            code, out, _ = run(capsys, *words)
            found = json.loads(run(capsys, *words, "--json")[1])["numbers"][0]
    assert code == 0
    [line] = re.findall(r"^  window    (.*)$", out, re.MULTILINE)
    why = r"2,048 \(stated in a refusal, until \d{4}-\d\d-\d\d [\d:]{8}Z"
    assert re.fullmatch(why + (r"; 32,768 is stated by vLLM\)" if listed else r"\)"), line)
    assert found == {"name": "window", "value": 2_048, "text": line}
    assert "  usable    1,792 (" in out
    assert "nothing is condensed until" not in out


def test_a_check_tells_of_a_proxy_that_runs_what_concerns_its_own_upstream_and_model(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(base_url: str, model: str) -> list[str]:
        found = check(capsys, "--upstream", base_url, "--store", "memory://", "--model", model)[1]
        return [text for name, _, text in found if name in ("running", "known", "window-unknown")]

    with running_proxy(upstream.url, window=9_000, admin={"token": TOKEN}) as proxy:
        stage = Stage(proxy, upstream)
        stage.ask(chat(4))
        proxy.served()
        with noted(Note(proxy.url, client_url(HOST, PORT), None, 0.0, token=TOKEN)):
            runs = f"A proxy runs at {proxy.url}."
            assert told(upstream.base_url, MODEL) == [runs, f"Known of {MODEL}: window 9,000 (settings)."]
            assert told(upstream.base_url, "other") == [runs, _UNKNOWN.format("other")]
            assert told("http://127.0.0.1:9/v1", MODEL) == [_UNKNOWN.format(MODEL)]


_UNKNOWN = (
    "The window of {} is unknown. Below 200,000 tokens (marks.most) nothing is condensed until the upstream states its"
    " window or refuses a request for its length."
)


def test_a_check_says_how_llama_cpp_was_started(upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    props = {**pages.LLAMA_CPP_PROPS, "total_slots": 1, "chat_template_caps": {"supports_tools": False}}
    said = {"/v1/models": pages.LLAMA_CPP, "/props": props}
    upstream.answer(lambda exchange: json_reply(said.get(exchange.path, {})))
    words = ("check", "--upstream", upstream.base_url, "--store", "memory://")
    out = run(capsys, *words)[1]
    assert "one slot: calls of the proxy's own give way" in out
    assert "its chat template shows the model no tools" in out
    said["/props"] = pages.LLAMA_CPP_PROPS
    assert "4 slots: if they share one cache" in run(capsys, *words)[1]


@pytest.mark.parametrize(("window", "least", "most"), [(256, 0, 59), (1_024, 28, 59), (4_096, 60, 180)])
def test_a_check_says_for_how_many_words_a_model_is_asked_and_whether_that_is_useful(
    window: int, least: int, most: int
) -> None:
    for strategy in ("half-window", "semantic", "mask+summary"):
        text = budget(window=window, strategy=strategy)
        told = r"words = about (\d+) are asked of a model; with the ledger a record has at most (\d+) tokens"
        [(words, tokens)] = re.findall(told, text)
        assert least <= int(words) <= min(most, int(tokens))
        assert ("too few to be useful" in text) is (int(words) < 60)
        assert {tokens.replace(",", "") for tokens in re.findall(r"record +([\d,]+) at most", text)} == {tokens}
        assert f"summary_max_tokens = {int(tokens):,} (" in text
    assert "words" not in budget(window=window)


def test_a_check_of_a_model_reads_the_suffix_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", "--offline", "--store", "memory://", "--strategy", "mask", "--model")
    code, out, _ = run(capsys, *words, "gpt-4o@recent")
    assert code == 0
    assert "model       gpt-4o\n" in out
    assert "strategy  recent (suffix of the name)" in out
    assert "strategy  mask (command line)" in run(capsys, *words, "gpt-4o@nobody")[1]


@pytest.mark.parametrize("name", ["", "m" * 513])
def test_a_check_takes_no_name_that_no_model_can_have(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check", "--offline", "--store", "memory://", "--model", name)
    assert (code, out) == (2, "")
    assert "--model" in err


def test_a_check_of_a_model_says_which_source_a_number_comes_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = "[marks]\nstep = 0.2\nreserve = 600\n[half-window]\nmin_rounds = 5\n[ledger]\nnames_max_tokens = 9\n"
    (tmp_path / "c.toml").write_text("window = 5000\n" + tables, "utf-8")
    monkeypatch.setenv("CONDENSER_MARKS__TARGET", "0.4")
    monkeypatch.setenv("CONDENSER_STRATEGY", "mask+half-window")
    monkeypatch.setenv("CONDENSER_HALF_WINDOW__MIN_OVERLAP", "2")
    words = ("check", "--offline", "--store", "memory://", "--config", str(tmp_path / "c.toml"), "--model", "m")
    out = run(capsys, *words, "--window", "7000")[1]
    assert "window    7,000 (command line)" in out
    assert re.search(r"target .*, environment\)", out)
    assert "half-window.min_overlap = 2 (environment)" in out
    assert "half-window.min_rounds = 5 (file)" in out
    assert "half-window.memory_cards = true (default)" in out
    assert re.search(r"step .*, file\)", out)
    assert "reserve   600 (file;" in out
    assert "names     9 at most (file)" in out
