"""`python -m eval.kits`: public kits, which nobody here wrote, on the program and beside other proxies.

`make eval` runs it in an environment of its own. `compaction-conformance-kit` plants facts and rules, `conpact` has the
fifteen constraints of COMPINT, `compact-audit` finds decisions, constraints, errors, edits and todos in agent traces.
Seeds are fresh each day. What survives is looked for as text: an upper bound of what a model would use of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from statistics import mean

from compact_audit.audit import audit
from compact_audit.extract import CATEGORIES, extract
from compaction_kit.benchmark import run_budget_benchmark
from compaction_kit.canaries import Canary, seeded_canaries
from compaction_kit.compacted import CompactedContext
from compaction_kit.compactors import ChecklistCompactor, UpdateAwareChecklistCompactor
from compaction_kit.corpus import build_random_session
from compaction_kit.generated import build_generated_session
from compaction_kit.probes import BehaviorProbe
from compaction_kit.session import SeededSession, Turn, build_seeded_session
from conpact.constraints import SCS, render_sc

from eval.kits_proxies import STYLES, TRIGGER, WINDOW, Message, Proxy, running, text_of
from tests.support.data import FOLDER

OURS = "condenser"
RIVALS = ("awecompress", "ctxkeeper")
WINDOWS = 4
"""Windows of other talk after the canaries: with their own, five."""
SEEDS = 4
BUDGETS = (0.1, 0.2, 0.3)
APART = 500
"""Requests come at least so many tokens apart: the kits have many short turns, and the traces long histories."""
TRACE, TRACES = 36_000, 4
"""The tokens of an agent's trace (characters / 4), of which the first are taken, and how many traces."""
_REPLACED = re.compile(r"\b(?:was|replaced|replaces|instead of|formerly|no longer)\b|取代", re.I)
_serial = count(1)


@dataclass(frozen=True)
class Material:
    """What is read from the recordings: talk of nothing that is asked for, traces of agents, and long haystacks."""

    talk: Sequence[Message]
    traces: Sequence[Sequence[Message]]
    haystacks: Sequence[Sequence[Message]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.kits", description=__doc__)
    parser.add_argument("--data", type=Path, default=FOLDER, metavar="FOLDER", help="with traces-dev*.jsonl.gz")
    parser.add_argument("--seed", type=int, default=datetime.now(UTC).date().toordinal(), help="by default the date's")
    parser.add_argument("--condenser", type=Path, default=Path(".venv/bin/condenser").absolute(), metavar="COMMAND")
    parser.add_argument("--only", nargs="*", default=(OURS, *RIVALS), metavar="PROXY")
    parser.add_argument("--settings", nargs="*", default=(), metavar="NAME=VALUE", help="variables for our program")
    parser.add_argument("--window", type=int, default=WINDOW, help="that of our program; by default %(default)s")
    arguments = parser.parse_args(argv)
    if not list(arguments.data.glob("traces-dev*.jsonl.gz")):
        print(f"eval.kits: no recordings in {arguments.data}; name their folder with --data", file=sys.stderr)
        return 1
    tools, material = Path(sys.executable).parent, material_in(arguments.data)
    settings = dict(each.split("=", 1) for each in arguments.settings)
    both = [name for name in arguments.only if name != OURS or settings]  # our default asks no model
    wanted = [(name, style) for name in arguments.only for style in (STYLES if name in both else STYLES[:1])]

    def measured(one: tuple[str, str]) -> dict[str, str]:
        with running(*one, arguments.condenser, tools, settings if one[0] == OURS else None) as proxy:
            proxy.window = arguments.window
            found = figures(proxy, material, arguments.seed)
        print(*one, json.dumps(found), file=sys.stderr)
        return found

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(wanted, pool.map(measured, wanted), strict=True))
        print(page(found, arguments.seed))
    return 0


def page(found: Mapping[tuple[str, str], Mapping[str, str]], seed: int) -> str:
    """The table."""
    kits = ", ".join(f"{name} {version(name)}" for name in ("compaction-conformance-kit", "conpact", "compact-audit"))
    ours = "**ours**, {}" if (OURS, STYLES[1]) in found else "**ours**"
    titles = [f"`{name}` {version(name)}, {style}" if name != OURS else ours.format(style) for name, style in found]
    rows = list(dict.fromkeys(row for figures in found.values() for row in figures))
    lines = [f"| {row} | {' | '.join(figures.get(row, '-') for figures in found.values())} |" for row in rows]
    head = [f"| yardstick | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"]
    now = datetime.now(UTC).date()
    return "\n".join([f"{kits}; window {WINDOW:,}, trigger {TRIGGER:,}; seed {seed}, {now}.", "", *head, *lines])


def figures(proxy: Proxy, material: Material, seed: int) -> dict[str, str]:
    """Every row of a proxy."""
    rows = {"kit, five windows": percent(planted(proxy, [(build_seeded_session(), seeded_canaries())], material))}
    generated = [build_generated_session(seed + each) for each in range(SEEDS)]
    rows[f"kit, generated corpus, {SEEDS} seeds"] = percent(planted(proxy, generated, material))
    restated = [build_random_session(seed + each) for each in range(SEEDS)]
    rows["kit, restated values: old ones shown as valid"] = stale(proxy, restated, material)
    rows["kit, paraphrased values: old ones shown as valid"] = stale(proxy, generated, material)
    by_place = {place: compint(proxy, material, place) for place in ("top", "middle", "bottom")}
    rows["COMPINT, top / middle / bottom"] = " / ".join(map(percent, by_place.values()))
    if proxy.name == OURS:
        rows.update(budgets(proxy, seed))
    rows.update(traces(proxy, material))
    return rows


def percent(kept: Sequence[bool]) -> str:
    return f"{100 * mean(kept):.0f} %" if kept else "-"


# -- planted facts ------------------------------------------------------------------------------------------


def planted(proxy: Proxy, sessions: Sequence[tuple[SeededSession, Sequence[Canary]]], material: Material) -> list[bool]:
    """Whether each canary is in the view after its own window and four more."""
    probe, kept = BehaviorProbe(), []
    for session, canaries in sessions:
        text = view_text(grown(proxy, [*messages_of(session), *material.talk]))
        kept += [probe.probe(canary, text).survived for canary in canaries]
    return kept


def stale(proxy: Proxy, sessions: Sequence[tuple[SeededSession, Sequence[Canary]]], material: Material) -> str:
    """How many values that were replaced stand in the view, in a line that does not say so."""
    shown = asked = 0
    for session, canaries in sessions:
        lines = view_text(grown(proxy, [*messages_of(session), *material.talk])).lower().splitlines()
        for canary in (each for each in canaries if each.superseded_tokens):
            asked += 1
            valid = [line for line in lines if not _REPLACED.search(line)]
            shown += any(old.lower() in line for line in valid for old in canary.superseded_tokens)
    return f"{shown} of {asked}"


def compint(proxy: Proxy, material: Material, place: str) -> list[bool]:
    """Whether each constraint is in the last view of each haystack, into whose user messages it was put."""
    kept = []
    for haystack in material.haystacks:
        users = [at for at, message in enumerate(haystack) if message["role"] == "user"]
        at = {"top": users[0], "middle": users[len(users) // 2], "bottom": users[-1 - len(users) // 8]}[place]
        for number, constraint in enumerate(SCS):
            told = render_sc(constraint["sc"], strict=number % 2 == 1, direct=number % 4 > 1)
            message = {**haystack[at], "content": f"{told}\n\n{haystack[at]['content']}"}
            view = view_text(grown(proxy, [*haystack[:at], message, *haystack[at + 1 :]]))
            kept.append(plain(constraint["sc"]) in plain(view))
    return kept


def plain(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()


def budgets(proxy: Proxy, seed: int) -> dict[str, str]:
    """The kit's own table of what survives in a share of the characters: ours, and the kit's two checklists."""

    class Compactor:
        name = OURS

        def compact(self, turns: Sequence[Turn], round_num: int = 1, budget_chars: int = 0) -> CompactedContext:
            text = "\n".join(turn.text for turn in turns)
            if len(text) > budget_chars:
                text = largest_view(proxy, [*messages_of(SeededSession(tuple(turns), {}))], budget_chars)
            return CompactedContext(text=text, compactor_name=OURS, round_num=round_num)

    made: dict[str, Callable[[], object]] = {
        OURS: Compactor,
        "kit's checklist": ChecklistCompactor,
        "kit's update-aware checklist": UpdateAwareChecklistCompactor,
    }
    result = run_budget_benchmark(made, BUDGETS, [seed + each for each in range(SEEDS)])
    by_name: dict[str, list[str]] = {}
    for entry in result["entries"]:
        kept = f"{100 * entry['randomized']['overall_final_survival']:.0f}"
        by_name.setdefault(entry["compactor"], []).append(kept if entry["budget_compliant"] else f"({kept})")
    title = "kit's budget table at 10 / 20 / 30 %"
    told = {name: title if name == OURS else f"the same, {name}" for name in made}
    return {row: " / ".join(by_name[name]) + " %" for name, row in told.items()}


def largest_view(proxy: Proxy, messages: Sequence[Message], characters: int) -> str:
    """The view in the largest window in which it has at most so many characters, or the smallest one there is."""
    best, low, high = "", 128, 8_192
    while high - low > 32:
        window = (low + high) // 2
        text = view_text(proxy.view_of(f"budget-{next(_serial)}", messages, window))
        if text and len(text) <= characters:
            best, low = text, window
        else:
            high = window
    return best


# -- agents' traces -----------------------------------------------------------------------------------------


def traces(proxy: Proxy, material: Material) -> dict[str, str]:
    """What `compact-audit` finds of each trace in its last view, and the input bill, cached tokens at a tenth."""
    kept, found = dict.fromkeys(CATEGORIES, 0), dict.fromkeys(CATEGORIES, 0)
    cost = direct = size = 0.0
    for messages in material.traces:
        views = list(grown_views(proxy, messages))
        cost, size = cost + bill(views), size + len(view_text(views[-1])) / 4
        direct += bill([messages[:end] for end in ends(messages)])
        lines = [line for message in messages for line in text_of(message).splitlines() if line.strip()]
        totals = audit(extract(lines), view_text(views[-1]))["totals"]
        for category, counts in totals.items():
            kept[category] += counts["kept"]
            found[category] += counts["kept"] + counts["dropped"]
    rows = {"compact-audit, all": f"{100 * sum(kept.values()) / sum(found.values()):.0f} %"}
    for each in CATEGORIES:
        share = f"{100 * kept[each] / found[each]:.0f} % of {found[each]}" if found[each] else "-"
        rows[f"compact-audit, {each.replace('_', ' ')}s"] = share
    rows["tokens of the last view, mean"] = f"{size / len(material.traces):,.0f}"
    rows["input bill of those traces, of direct"] = f"{cost / direct:.2f}"
    return rows


def bill(views: Sequence[Sequence[Message]]) -> float:
    """Tokens (characters / 4) of all views; those of a common prefix of messages with the view before at a tenth."""
    cost, before = 0.0, [""]
    for view in views:
        now = [json.dumps(message, sort_keys=True) for message in view]
        differs = (at for at, (old, new) in enumerate(zip(before, now, strict=False)) if old != new)
        same = next(differs, min(len(before), len(now)))
        cost += sum(len(each) * (0.1 if at < same else 1) for at, each in enumerate(now)) / 4
        before = now
    return cost


# -- conversations ------------------------------------------------------------------------------------------


def grown(proxy: Proxy, messages: Sequence[Message]) -> Sequence[Message]:
    return list(grown_views(proxy, messages))[-1]


def grown_views(proxy: Proxy, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The views of a conversation that grows, in a session of its own, which a first line names."""
    session = f"kit-{next(_serial)}"
    named = [{"role": "system", "content": f"Conversation {session}."}, *messages]
    for end in ends(named):
        yield proxy.view_of(session, named[:end])


def ends(messages: Sequence[Message]) -> Iterator[int]:
    """Where requests end: before replies, `APART`, and at the last message that is no reply."""
    last = max(at for at, message in enumerate(messages, 1) if message["role"] != "assistant")
    since = 0
    for at, message in enumerate(messages[:last]):
        if message["role"] == "assistant" and messages[at - 1]["role"] != "system" and since >= APART:
            yield at
            since = 0
        since += tokens(message)
    yield last


def messages_of(session: SeededSession) -> list[Message]:
    return [{"role": turn.role, "content": turn.text} for turn in session.turns]


def view_text(view: Sequence[Message]) -> str:
    return "\n".join(map(text_of, view))


def tokens(message: Message) -> int:
    return len(text_of(message)) // 4


def material_in(folder: Path) -> Material:
    files = sorted(folder.glob("traces-dev*.jsonl.gz"))
    known = [json.loads(line) for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]
    by_kind: dict[str, list[list[Message]]] = {}
    for each in (one for one in known if one["lang"] == "en"):
        by_kind.setdefault(each["kind"], []).append(each["messages"])
    talk = [message for messages in by_kind["chat"] for message in messages if message["role"] != "system"]
    agents = [first(each, TRACE) for each in by_kind["coding-agent"] if sum(map(tokens, each)) > 1.5 * TRACE]
    served = max(by_kind["customer-service-tools"], key=len)
    haystacks = [first(served, 3 * TRIGGER), first(agents[-1], 3 * TRIGGER)]
    return Material(first(talk, WINDOWS * TRIGGER), agents[:TRACES], haystacks)


def first(messages: Sequence[Message], most: int) -> list[Message]:
    """The first messages that have so many tokens, up to a user's."""
    kept: list[Message] = []
    for message in messages:
        if most < 0 and message["role"] == "user":
            break
        most -= tokens(message)
        kept.append(message)
    while kept[-1].get("tool_calls"):
        kept.pop()
    return [*kept, {"role": "user", "content": "Thank you. Let us go on with the next point."}]


if __name__ == "__main__":
    sys.exit(main())
