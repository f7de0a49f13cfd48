"""Long text is counted in pieces that change nothing, estimates are near, and encodings are tiktoken's own."""

import base64
import inspect
import json
import random
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens import ranks
from proxy.tokens.ranks import CHUNK_CHARS, SAMPLE_CHARS, chunks, count_in_chunks, estimate

Encodings = Callable[[str], tiktoken.Encoding]
ENGLISH = "The quick brown fox didn't jump; it walked around the lazy dog, twice.\n"
CHINESE = "天气很好，我们去公园吧。 我们 也 可以 在家 看书。\n"
SOURCE = inspect.getsource(random)


def counted(encoding: tiktoken.Encoding, text: str) -> int:
    return count_in_chunks(text, lambda chunk: len(encoding.encode_ordinary(chunk)))


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@pytest.mark.parametrize("unit", [ENGLISH, CHINESE, SOURCE], ids=["english", "chinese", "source"])
def test_real_text_costs_the_same_in_chunks_as_whole(name: str, unit: str, encodings: Encodings) -> None:
    encoding = encodings(name)
    text = unit * (300_000 // len(unit))
    assert counted(encoding, text) == len(encoding.encode_ordinary(text))


def test_unbroken_text_is_off_by_a_few_tokens_at_most(encodings: Encodings) -> None:
    encoding = encodings("o200k_base")
    text = "".join(random.Random(3).choices("ABCDEFabcdef0123456789+/", k=400_000))
    assert abs(counted(encoding, text) - len(encoding.encode_ordinary(text))) <= 12


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@pytest.mark.parametrize("unit", [" ", "\t", "\u00a0", "a", "=", "\n", "\U0001f600", "字"])
def test_very_many_equal_characters_are_counted(name: str, unit: str, encodings: Encodings) -> None:
    tokens = counted(encodings(name), unit * 200_000 + "end")
    assert 0 < tokens <= 4 * 200_000


def test_a_text_beyond_the_cap_is_extrapolated_from_samples(encodings: Encodings) -> None:
    encoding = encodings("o200k_base")
    seen: list[int] = []

    def encode(chunk: str) -> int:
        seen.append(len(chunk))
        return len(encoding.encode_ordinary(chunk))

    text = ENGLISH * (6_000_000 // len(ENGLISH))
    tokens = count_in_chunks(text, encode)
    whole = len(encoding.encode_ordinary(ENGLISH)) * (len(text) // len(ENGLISH))
    assert sum(seen) <= SAMPLE_CHARS
    assert abs(tokens - whole) < 0.01 * whole


class PanicException(BaseException):
    """As pyo3 raises it: no Exception, and not importable from anywhere."""


def test_a_panic_costs_precision_and_an_interrupt_ends_the_count() -> None:
    def panics(chunk: str) -> int:
        raise PanicException("regex stack overflow")

    assert count_in_chunks("some text", panics) == estimate("some text")

    def interrupted(chunk: str) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_in_chunks("some text", interrupted)


SAMPLES = {
    "english": "Could you check whether the invoice from last Tuesday was paid? I can't find it anywhere. " * 20,
    "code": SOURCE[:6_000],
    "json": json.dumps([{"id": n, "name": f"item {n}", "price": n / 7} for n in range(60)]),
    "chinese": "请帮我查一下明天从北京到上海的航班，最好是上午出发，价格不要太贵。" * 30,
    "russian": "Пожалуйста, проверь, был ли оплачен счёт за прошлый вторник. " * 30,
    "hex": random.Random(5).randbytes(1_500).hex(),
    "base64": base64.b64encode(random.Random(5).randbytes(2_000)).decode(),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_estimates_are_near_the_count(kind: str, encodings: Encodings) -> None:
    truth = len(encodings("o200k_base").encode_ordinary(SAMPLES[kind]))
    assert estimate(SAMPLES[kind]) == pytest.approx(truth, rel=0.3)


@given(st.text(max_size=300))
def test_no_text_is_estimated_below_one_token_or_above_its_bytes(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert min(1, size) <= estimate(text) <= size
    assert 1 <= estimate("\ud800") <= 3


@given(st.lists(st.sampled_from([" ", "\n", "a", " b", "\nc", "ü", "字", "x" * 3_000]), max_size=200))
def test_chunks_are_the_text_in_order_and_bounded(pieces: list[str]) -> None:
    text = "".join(pieces)
    parts = list(chunks(text))
    assert "".join(parts) == text
    assert all(0 < len(part) <= CHUNK_CHARS for part in parts)


# tiktoken names a cached download by the sha1 of its address.
CACHED_AS = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}
CORPUS = [
    "It's the users' DON'T we'll they'VE\r\n\r\n  indented\tand tabbed \n",
    "def f(x: int) -> str:\n    return f'{x:>08}' if x else \"\"  # 1234567890 3.14159\n",
    '{"id": 17, "names": ["Ünïcode", "naïve"], "nested": {"a": [1, 2.5e-3, null, true]}}',
    "天气很好，我们去公园吧。東京は晴れです。 오늘 날씨가 좋아요.",
    "Привет, как дела? Γειά σου Κόσμε! مرحبا بالعالم שלום עולם สวัสดีชาวโลก नमस्ते दुनिया",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 é é ﬁ ⅷ ½ ²",
    "<|endoftext|><|fim_prefix|> are plain text here <|endofprompt|>",
    "a" * 500 + " " * 500 + "=" * 500 + "\n" * 500,
    "\ud800 lone surrogates \udfff",
    "",
]


def mixed_corpus() -> list[str]:
    chance = random.Random(11)
    noise = string.printable + "äöüßéèñ中文字日本語한국어абвгд"
    return CORPUS + ["".join(chance.choices(noise, k=2_000)) for _ in range(50)]


@pytest.mark.parametrize("name", sorted(ranks.SPECS))
def test_our_encoding_is_the_one_tiktoken_builds(
    name: str, encodings: Callable[[str], tiktoken.Encoding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = encodings(name)
    (tmp_path / CACHED_AS[name]).write_bytes((ranks.RANKS_DIR / f"{name}.tiktoken").read_bytes())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    theirs = tiktoken.get_encoding(name)
    assert ours.special_tokens_set == theirs.special_tokens_set
    assert ours.n_vocab == theirs.n_vocab
    for text in mixed_corpus():
        assert ours.encode_ordinary(text) == theirs.encode_ordinary(text)
    assert ours.encode("<|endoftext|>", allowed_special="all") == [ours.eot_token]


def test_a_missing_or_other_rank_file_is_refused_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ranks.RanksUnavailable, match=r"o200k_base\.tiktoken.*make ranks"):
        ranks.load("o200k_base", tmp_path)
    (tmp_path / "o200k_base.tiktoken").write_bytes(b"YQ== 0\n")
    with pytest.raises(ranks.RanksUnavailable, match="other contents"):
        ranks.load("o200k_base", tmp_path)


def test_importing_the_package_reads_no_rank_file() -> None:
    code = "import sys; sys.addaudithook(lambda e, a: e == 'open' and '.tiktoken' in str(a[0]) and exit(3))"
    subprocess.run([sys.executable, "-c", f"{code}; import proxy.tokens.counter"], check=True)
