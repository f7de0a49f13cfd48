"""A control header whose name is wrong is ignored, and named in the log once."""

from __future__ import annotations

import pytest

from proxy.controls import UnknownHeaders
from tests.support.stage import chat, controls, proxy_with_upstream


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "proxy.controls"]


def test_a_misspelt_name_is_logged_once_with_the_one_that_is_near(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownHeaders()
    for name in ("x-condenser-stratgy", "X-Condenser-Stratgy", "X-CONDENSER-STRATGY"):
        unknown.warnings([name])
    assert warnings(caplog) == [
        "the request header X-Condenser-Stratgy is unknown and ignored, did you mean X-Condenser-Strategy?"
    ]


def test_a_name_that_is_near_to_none_is_logged_without_a_guess(caplog: pytest.LogCaptureFixture) -> None:
    UnknownHeaders().warnings(["x-condenser-quux"])
    assert warnings(caplog) == ["the request header X-Condenser-Quux is unknown and ignored"]


def test_a_name_is_cut_and_has_no_character_that_would_do_something(caplog: pytest.LogCaptureFixture) -> None:
    UnknownHeaders().warnings(["x-condenser-\n\x1b\xe9" + "y" * 10_000])
    (line,) = warnings(caplog)
    assert "X-Condenser-???Y" in line
    assert line.isprintable()
    assert len(line) < 200


def test_a_client_that_invents_names_fills_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownHeaders(most=3)
    for number in range(1_000):
        unknown.warnings([f"x-condenser-{number}"])
    assert len(warnings(caplog)) == 4
    assert warnings(caplog)[-1].endswith("no further one is logged")
    assert len(unknown._logged) == 4


def test_the_value_of_a_misspelt_header_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with proxy_with_upstream() as stage:
        headers = [("X-Condenser-Sesion", "hunter2")]
        for _ in range(2):
            assert stage.ask(chat(1), headers).action == "passed"
    assert len([line for line in warnings(caplog) if "X-Condenser-Sesion " in line]) == 1
    assert "hunter2" not in caplog.text


def test_the_reply_names_an_unknown_header_and_never_its_value() -> None:
    with proxy_with_upstream() as stage:
        headers = [("X-Condenser-Sesion", "hunter2"), ("x-condenser-quux", "1")]
        for _ in range(2):
            assert stage.ask(chat(1), headers).header("x-condenser-warning") == (
                "X-Condenser-Sesion is unknown and ignored, did you mean X-Condenser-Session?; "
                "X-Condenser-Quux is unknown and ignored"
            )
        assert stage.ask(chat(1)).header("x-condenser-warning") is None


def test_a_warning_is_short_printable_ascii_whatever_the_names_are() -> None:
    names = [f"X-Condenser-\r\n\x1b\xe9;{number}" + "y" * 10_000 for number in range(100)]
    warned = UnknownHeaders().warnings(names)
    assert len(warned) == 4
    assert all(each.isascii() and each.isprintable() and len(each) < 200 for each in warned)


def test_an_option_above_its_bound_is_clamped_with_a_warning() -> None:
    with proxy_with_upstream() as stage:
        answer = stage.ask(chat(1), controls(strategy="extract", options="max_tokens=9000"))
        assert answer.header("x-condenser-warning") == (
            "extract.max_tokens of 9,000 is clamped to 409: a tenth of the window"
        )
