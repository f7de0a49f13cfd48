"""A control header whose name is wrong is ignored, and named in the reply."""

from proxy.controls import unknown_headers
from tests.support.stage import chat, controls, proxy_with_upstream


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
    warned = unknown_headers(names)
    assert len(warned) == 4
    assert all(each.isascii() and each.isprintable() and len(each) < 200 for each in warned)


def test_an_option_above_its_bound_is_clamped_with_a_warning() -> None:
    with proxy_with_upstream() as stage:
        answer = stage.ask(chat(1), controls(strategy="extract", options="max_tokens=9000"))
        assert answer.header("x-condenser-warning") == (
            "extract.max_tokens of 9,000 is clamped to 409: a tenth of the window"
        )
