"""Our encodings are tiktoken's own, and a bad rank file is refused with a reason."""

from __future__ import annotations

import random
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken

from proxy.tokens import ranks

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


def test_a_missing_file_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ranks.RanksUnavailable, match=r"o200k_base\.tiktoken.*make ranks"):
        ranks.load("o200k_base", tmp_path)


def test_a_file_with_other_contents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o200k_base.tiktoken").write_bytes(b"YQ== 0\n")
    with pytest.raises(ranks.RanksUnavailable, match="other contents"):
        ranks.load("o200k_base", tmp_path)


def test_importing_the_package_reads_no_rank_file() -> None:
    code = "import sys; sys.addaudithook(lambda e, a: e == 'open' and '.tiktoken' in str(a[0]) and exit(3))"
    subprocess.run([sys.executable, "-c", f"{code}; import proxy.tokens.counter"], check=True)
