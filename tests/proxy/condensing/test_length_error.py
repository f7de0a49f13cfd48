"""The account of a request that is too large says where its window comes from, as a user would say it."""

from __future__ import annotations

import pytest

from proxy.condensing.account import where_tokens_are
from proxy.condensing.policy import Window
from proxy.knowledge.learned_windows import SOURCE
from tests.proxy.condensing.test_account import decision


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("request", "(from this request's X-Condenser-Window header or condenser.window member)"),
        ("settings", "(from the settings)"),
        ("settings for 'qwen3*'", "(from the settings for 'qwen3*')"),
        ("bundled table", "(from the bundled table)"),
        ("stated by Ollama", "(stated by Ollama)"),
        (SOURCE, "(as the upstream said when it refused a longer prompt)"),
    ],
)
def test_an_account_says_where_the_window_comes_from(source: str, says: str) -> None:
    made = decision()
    policy = made.policy._replace(window=Window(8_000, source))
    made = made.in_context(made.context._replace(policy=policy))
    assert f"context length is 8,000 tokens {says}. " in where_tokens_are(made)
