"""`condenser demo` from its command line to its exit code, with a short conversation."""

from contextlib import redirect_stdout
from io import StringIO

import pytest

from proxy.cli import FAILED, OK, USAGE, main

WINDOW = 3_072
REQUESTS = 26
SHORT = ["--window", str(WINDOW), "--requests", str(REQUESTS)]


def figures(output: str, label: str) -> list[str]:
    """The cells of a row in the last table: direct, trimmed, condensed."""
    (row,) = [line for line in output.splitlines() if line.strip().startswith(label)]
    return row.strip().removeprefix(label).split()


@pytest.fixture(scope="module")
def output() -> str:
    """What the demo prints with its default strategy."""
    with redirect_stdout(StringIO()) as printed:
        assert main(["demo", *SHORT]) == OK
    return printed.getvalue()


def test_it_shows_an_overflow_that_the_proxy_avoids(output: str) -> None:
    assert f"and the window {WINDOW:,}: a model server refuses it" in " ".join(output.split())
    assert figures(output, "requests answered")[-3:] == [str(REQUESTS), "of", str(REQUESTS)]
    direct, trimmed, condensed = figures(output, f"overflows avoided (client sent over {WINDOW:,})")
    assert direct == "0"
    assert int(trimmed) == int(condensed) > 10
    assert "condensed" in output
    assert max(map(len, output.splitlines())) <= 100
    text = " ".join(output.split())
    assert "No key, no model, nothing leaves this machine." in text
    assert "No model was asked" in text
    assert "What it cannot show: how good answers are." in text
    planted = figures(output, "planted facts that reach the model")
    assert planted == ["0", "of", "5", "1", "of", "5", "5", "of", "5"]


@pytest.mark.parametrize("protocol", ["messages", "responses"])
def test_it_shows_the_same_in_every_protocol(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--protocol", protocol, *SHORT]) == OK
    assert figures(capsys.readouterr().out, "planted facts that reach the model")[-3:] == ["5", "of", "5"]


def test_a_short_run_asks_the_same_whatever_the_machines_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["demo", "--requests", "3"]) == OK
    output = capsys.readouterr().out
    assert figures(output, "planted facts that reach the model") == 3 * ["5", "of", "5"]
    assert figures(output, "a tool")[-3:] == 3 * ["no"]
    monkeypatch.setenv("CONDENSER_UPSTREAM__BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("CONDENSER_STRATEGY", "off")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert main(["demo", "--requests", "3"]) == OK
    assert "mask+extract" in capsys.readouterr().out


def test_a_strategy_that_lets_requests_be_refused_fails_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--strategy", "off", *SHORT]) == FAILED
    output = " ".join(capsys.readouterr().out.split())
    assert "Not all went as it must" in output
    assert "condensed: 12 requests were refused" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategy", "nonsense"], "unknown strategy 'nonsense'"),
        (["--window", "12"], "must be at least 256"),
        (["--window", "many"], "'many' must be a whole number of at least 1"),
        (["--requests", "0"], "'0' must be a whole number of at least 1"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *arguments])
    assert stopped.value.code == USAGE
    assert words in capsys.readouterr().err
