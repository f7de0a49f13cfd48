"""Where the window of a model comes from: the first source that says it."""

import pytest

from proxy.servers.windows import Window
from proxy.settings import Settings
from proxy.settings.tables import ModelSettings
from proxy.tokens.models import StatedWindow
from tests.support.servers import window_of


def test_window_order_is_request_model_settings_table() -> None:
    settings = Settings(window=9_000, models=(ModelSettings(match="q*", window=7_000),))
    assert window_of(settings, "qwen", 5_000) == Window(5_000, "request")
    assert window_of(settings, "qwen") == Window(7_000, "settings for 'q*'")
    assert window_of(settings, "gpt-4o") == Window(9_000, "settings")
    assert window_of(Settings(), "gpt-4o") == Window(128_000, "bundled table")
    assert window_of(Settings(), "no-such-model") == Window(None, "unknown")


def test_a_stated_window_goes_before_the_bundled_table() -> None:
    stated = StatedWindow(4_096, 3_000, "stated by TGI")
    assert window_of(Settings(), "gpt-4o", stated=stated) == Window(4_096, "stated by TGI", 3_000)
    assert window_of(Settings(), "gpt-4o", 5_000, stated) == Window(5_000, "request")
    assert window_of(Settings(window=9_000), "gpt-4o", stated=stated).tokens == 9_000


def test_a_ceiling_lowers_the_bundled_table_and_stands_where_it_has_nothing() -> None:
    def window(model: str, ceiling: int) -> Window:
        stated = StatedWindow(ceiling, None, "a maximum listed by the upstream", is_ceiling=True)
        return window_of(Settings(), model, stated=stated)

    assert window("gpt-4o", 4_096).tokens == 4_096
    assert window("gpt-4o", 1_000_000) == Window(128_000, "bundled table")
    assert window("novel", 4_096).tokens == 4_096
    assert not window("novel", 4_096).is_known


@pytest.mark.parametrize(
    ("model", "is_long", "tokens"),
    [
        ("claude-sonnet-4-5", True, 1_000_000),
        ("claude-sonnet-4-5[1m]", False, 1_000_000),
        ("claude-sonnet-4-5", False, 200_000),
        ("claude-haiku-4-5[1m]", True, 200_000),
        ("claude-opus-4-7[1m]", True, 1_000_000),
        ("novel[1m]", True, None),
    ],
)
def test_a_million_tokens_are_given_where_asked_for_and_possible(model: str, is_long: bool, tokens: int | None) -> None:
    stated = StatedWindow(200_000, None, "stated by the upstream") if model == "claude-sonnet-4-5" else None
    for each in (None, stated):
        assert window_of(Settings(), model, stated=each, is_long=is_long).tokens == tokens
    assert window_of(Settings(), model, 5_000, is_long=is_long).tokens == 5_000
