"""The estimator is bounded for every text and near the truth for usual ones."""

from __future__ import annotations

import base64
import inspect
import json
import random
from collections.abc import Callable

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.ranks import estimate

SAMPLES = {
    "english": "Could you check whether the invoice from last Tuesday was paid? I can't find it anywhere. " * 20,
    "code": inspect.getsource(random)[:6_000],
    "json": json.dumps([{"id": n, "name": f"item {n}", "price": n / 7} for n in range(60)]),
    "chinese": "请帮我查一下明天从北京到上海的航班，最好是上午出发，价格不要太贵。" * 30,
    "russian": "Пожалуйста, проверь, был ли оплачен счёт за прошлый вторник. " * 30,
    "hex": random.Random(5).randbytes(1_500).hex(),
    "base64": base64.b64encode(random.Random(5).randbytes(2_000)).decode(),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_estimates_are_near_the_count(kind: str, encodings: Callable[[str], tiktoken.Encoding]) -> None:
    truth = len(encodings("o200k_base").encode_ordinary(SAMPLES[kind]))
    assert estimate(SAMPLES[kind]) == pytest.approx(truth, rel=0.3)


@given(st.text(max_size=300))
def test_no_text_is_estimated_below_one_token_or_above_its_bytes(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert min(1, size) <= estimate(text) <= size


def test_a_lone_surrogate_is_counted_and_not_refused() -> None:
    assert 1 <= estimate("\ud800") <= 3
