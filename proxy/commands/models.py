"""Renew the table of model windows and prices, from packages that are installed or from a file. Downloads nothing.

FILE is LiteLLM's map of models (JSON), or a table of this program (`models.toml`). The packages are `litellm` and
`genai-prices`. What neither knows stays as the present table has it. The first source that knows a model wins.

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

Columns. `max_input_tokens` of LiteLLM is, for nearly all models, the context length that input and output
share; that is our `window`. OpenAI's models since gpt-5 are the exception: 272 000 in + 128 000 out of a
window of 400 000, and 922 000 + 128 000 of 1 050 000. Some of their rows give the input limit and some the
window; both are brought to `window` and `max_input`. `max_output` is left out where it is no limit of its own.

Prices are the vendors' own for a million tokens. They weigh reading from a cache against reading anew, so the names of
published weights are kept here. A model without a price for its cache is taken to have none. A step is the size above
which the whole prompt costs more; of several the lowest is kept, because that is the one to stay below. Prices that are
announced for a day are kept under that day.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from proxy import config_directory
from proxy.commands.options import use_config
from proxy.commands.proxy_client import actions_of
from proxy.errors import CommandFailed
from proxy.settings import CONFIG_VARIABLE
from proxy.settings.loading import MODELS, models_file
from proxy.tokens.models import ModelTable, canonical_name, claude_version, family_of, newest_table, without_date

MEMBER = "model_prices_and_context_window_backup.json"
"""LiteLLM's map of models, in its package."""
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
# Context lengths and prices of well-known models. GENERATED by `condenser models update`; do not edit:
# an entry of your own belongs into [[models]] of the settings, which is asked first.
#
# The packages that it is from are under MIT, LiteLLM's outside enterprise/.
#
# window      input and output together
# max_input   only where the input alone has a smaller limit
# max_output  only where the reply has a limit of its own
#
# long        for a request that asks for a million tokens
#
# A name is looked up in one spelling (proxy/tokens/models.py), then without date.

made = {made}
sources = {sources}

[models]
"""


PRICES = """
# What a million tokens cost at the vendor's own API, in US dollars: read anew, read from the cache, written to the
# cache, of a reply. For prompts of ordinary length, without batches and priorities. `prices_from` has what holds from a
# day on.

[prices]
"""


LATER = "\n[prices_from.{day}]\n"

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


class Priced(NamedTuple):
    """What a model costs, above which size it costs more, and what it will cost from a day on."""

    cost: Cost
    step: Step | None = None
    later: Mapping[str, Cost] = {}


class Known(NamedTuple):
    """All that a table knows, by the names of models."""

    models: Mapping[str, Limits]
    prices: Mapping[str, Priced]
    sources: Sequence[str] = ()

    def over(self, older: Known) -> Known:
        """This table, with what only an older one knows."""
        sources = [*self.sources, *(each for each in older.sources if each not in self.sources)]
        return Known({**older.models, **self.models}, {**older.prices, **self.prices}, sources)


Table = Mapping[str, Mapping[str, Any]]
V = TypeVar("V")
GENAI = {"google": "gemini", "x-ai": "xai", "moonshotai": "moonshot", "cohere": "cohere_chat"}
"""The vendors that genai-prices names otherwise than LiteLLM."""
_COSTS = {
    "input_cost_per_token": "input_mtok",
    "output_cost_per_token": "output_mtok",
    "cache_read_input_token_cost": "cache_read_mtok",
    "cache_creation_input_token_cost": "cache_write_mtok",
}
_NONE = Known({}, {})
_NOTHING = "no litellm or genai-prices is installed here that is newer than the table: install one, or name a FILE"


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "renew models.toml beside the settings; the proxy reads it at its start, and after `condenser reload`"
    action = actions_of(command).add_parser("update", help=text, description=__doc__)
    action.set_defaults(run=_update, parser=action)
    action.add_argument("file", metavar="FILE", type=Path, nargs="?", help="LiteLLM's map, or a models.toml")
    action.add_argument("--config", metavar="FILE", help=f"a TOML file ({CONFIG_VARIABLE}), beside which it is written")


def _update(arguments: argparse.Namespace) -> None:
    """Writes the table; raises `CommandFailed` where no source can be read."""
    use_config(arguments.config)
    target, today = models_file(), datetime.now(UTC).date()
    present = newest_table(config_directory() / MODELS, target).path
    try:
        if arguments.file is not None and arguments.file.suffix == ".toml":
            source, text = str(arguments.file), arguments.file.read_text("utf-8")
        else:
            given = {arguments.file.name: json.loads(arguments.file.read_bytes())} if arguments.file else {}
            older = table_in(present)
            first, second = (given, {}) if given else installed(today, older.sources)
            source = ", then ".join([*first, *second])
            made = known(list(first.values()), list(second.values()), older)._replace(sources=[*first, *second])
            text = render(made.over(older), today)
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_suffix(".new")
        written.write_text(text, "utf-8")
        found = ModelTable.load(written)
        written.replace(target)
    except (ValueError, AttributeError, KeyError) as error:
        raise CommandFailed(f"{arguments.file or 'the installed packages'}: no table of models: {error}") from None
    print(f"{target}: {len(tomllib.loads(text)['models'])} models, of {found.made}, from {source}")
    if (holds := newest_table(config_directory() / MODELS, target)).path != target:
        print(f"the {holds.source} is of {holds.made}, and holds until a newer one is here")


def installed(today: date, sources: Sequence[str]) -> tuple[dict[str, Table], dict[str, Table]]:
    """The tables of LiteLLM and of genai-prices by package and version, each empty if that is not installed.

    So is one that is no newer than the present table's `sources`. Raises `CommandFailed` if nothing is left.
    """
    first, second = {}, {}
    litellm, genai = find_spec("litellm"), find_spec("genai_prices")
    if litellm is not None and litellm.origin and (named := _newer("litellm", sources)):
        # Importing it would take seconds, and it might ask the network.
        first[named] = json.loads(Path(litellm.origin).with_name(MEMBER).read_bytes())
    if genai is not None and (named := _newer("genai-prices", sources)):
        second[named] = genai_rows(import_module("genai_prices.data").providers, today)
    if not first and not second:
        raise CommandFailed(_NOTHING)
    return first, second


def _newer(package: str, sources: Sequence[str]) -> str:
    """An installed package with its version, "" if that is no newer than that of the sources."""
    named = f"{package}=={version(package)}"
    before = [_numbers(each) for each in sources if each.startswith(f"{package}==")]
    return named if all(_numbers(named) > each for each in before) else ""


def _numbers(source: str) -> list[int]:
    return [*map(int, re.findall(r"\d+", source))]


def genai_rows(providers: Iterable[Any], today: date) -> Table:
    """The vendors' own models of genai-prices, in the form of LiteLLM's map; `later` has their dated prices."""
    found: dict[str, Mapping[str, Any]] = {}
    for provider in providers:
        vendor = GENAI.get(provider.id, provider.id)
        for model in provider.models if vendor in VENDORS else ():
            # What holds at some hours only, or from a day that has passed and was followed by another, is left out.
            dated = model.prices if isinstance(model.prices, list) else []
            starts = {getattr(each.constraint, "start_date", date.min): each.prices for each in reversed(dated)}
            held = max((day for day in starts if day <= today), default=None)
            later = {day.isoformat(): dict(_genai_costs(starts[day])) for day in sorted(starts) if day > today}
            split = {"max_output_tokens": 128_000} if model.context_window in SPLIT_WINDOWS else {}
            found[f"{provider.id}/{model.id}"] = {
                "litellm_provider": vendor,
                "mode": "chat",
                "max_input_tokens": model.context_window,
                **(split if vendor == "openai" else {}),
                **dict(_genai_costs(starts[held] if held is not None else model.prices)),
                "later": later,
            }
    return found


def _genai_costs(prices: Any) -> Iterator[tuple[str, float]]:
    for name, theirs in _COSTS.items():
        price = getattr(prices, theirs)
        for tier in getattr(price, "tiers", ()):
            yield f"{name}_above_{tier.start // 1000}k_tokens", float(tier.price) / 1e6
        if price is not None:
            yield name, float(getattr(price, "base", price)) / 1e6


def known(tables: Sequence[Table], second: Sequence[Table] = (), older: Known = _NONE) -> Known:
    """What tables in the form of LiteLLM's map know; the first that knows a model wins.

    Of a `second` one, where windows are less sure, a window counts if another version of the model has it.
    """
    models = merge(tables)
    windows: dict[str, set[int]] = defaultdict(set)
    for name, limits in {**older.models, **models}.items():
        windows[family_of(name)].add(limits.window)
    for name, limits in (each for table in second for each in vendor_rows(table)):
        if limits.window in windows[family_of(name)] and name not in older.models:
            models.setdefault(name, limits)
    costs = priced([*tables, *second])
    sure = {name for table in tables for name, _ in rows(table)} | models.keys()
    return Known(prune(models), prune({name: one for name, one in costs.items() if name in sure}))


def table_in(path: Path) -> Known:
    """What a table of this program knows."""
    document = tomllib.loads(path.read_text("utf-8"))
    later: dict[str, dict[str, Cost]] = defaultdict(dict)
    for day, rows in document.get("prices_from", {}).items():
        for name, row in rows.items():
            later[name][day] = Cost(*row)
    steps = {name: Step(**step) for name, step in document.get("steps", {}).items()}
    costs = document["prices"].items()
    prices = {name: Priced(Cost(*row), steps.get(name), later.get(name, {})) for name, row in costs}
    limits = {name: Limits(**entry) for name, entry in document["models"].items()}
    return Known(limits, prices, document.get("sources", ()))


def merge(tables: Sequence[Table]) -> dict[str, Limits]:
    models: dict[str, Limits] = {}
    priced_long = (name for table in tables for name, row in rows(table) if row.get(LONG_PRICE))
    long = {without_date(canonical_name(name)) for name in priced_long if (claude_version(name) or (0, 0)) >= (4, 0)}
    vendors = (known for table in tables for known in vendor_rows(table))
    for name, limits in (*vendors, *hosted_windows(tables)):
        is_long = limits.window < LONG and without_date(canonical_name(name)) in long
        models.setdefault(name, limits._replace(long=LONG if is_long else None))
    return models


def hosted_windows(tables: Sequence[Table]) -> Iterator[tuple[str, Limits]]:
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


def priced(tables: Sequence[Table]) -> dict[str, Priced]:
    """What each vendor's models cost at its own API; the first table that knows a model wins.

    Dated prices are taken of any table that has the same price for today.
    """
    found: dict[str, Priced] = {}
    for table in tables:
        for provider, pattern in VENDORS.items():
            for name, row in rows(table):
                cost = cost_of(row) if row["litellm_provider"] == provider and re.match(pattern, name) else None
                if cost is None:
                    continue
                dated = ((day, cost_of(costs)) for day, costs in row.get("later", {}).items())
                one = Priced(cost, step_of(row), {day: at for day, at in dated if at is not None})
                had = found.setdefault(name, one)
                if not had.later and had.cost == cost:
                    found[name] = had._replace(later=one.later)
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


def rows(table: Table) -> Iterator[tuple[str, Mapping[str, Any]]]:
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


def render(table: Known, made: date) -> str:
    limits = "\n".join(f"{json.dumps(name)} = {one.toml()}" for name, one in sorted(table.models.items()))
    prices = sorted(table.prices.items())
    costs = "\n".join(f"{json.dumps(name)} = {list(one.cost)}" for name, one in prices)
    steps = "\n".join(f"{json.dumps(name)} = {one.step.toml()}" for name, one in prices if one.step is not None)
    later = ""
    for day in sorted({day for one in table.prices.values() for day in one.later}):
        rows = "\n".join(f"{json.dumps(name)} = {list(one.later[day])}" for name, one in prices if day in one.later)
        later += LATER.format(day=day) + rows + "\n"
    head = HEADER.format(sources=json.dumps(list(table.sources)), made=made)
    return f"{head}{limits}\n{PRICES}{costs}\n{later}{STEPS}{steps}\n"
