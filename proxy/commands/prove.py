"""Run tasks of your own with and without condensing, in turn, and compare what came of them.

FILE is TOML with a table [[tasks]] for each task: `prompt`, what COMMAND is asked, and `check`, a shell command that
exits 0 if that is done. COMMAND is run as under `wrap`, with the prompt in place of {prompt}, else as its last word.
Each run has a copy of the folder, without links that lead out of it, and a proxy of its own, whose store is in memory.
The check runs in the copy too, without the keys of the environment; what it prints is not kept.

A run is a line in the file of results, and is not run again. It ends at --timeout, with all that it has started, and if
--budget is reached; then the requests that are under way are still paid.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

from proxy.cli import FAILED, OK, USAGE
from proxy.commands.options import add_settings_arguments, amount, positive, settings_from
from proxy.commands.progress import Progress
from proxy.commands.replaying.agreement import ratio, upper
from proxy.commands.replaying.report import grid
from proxy.commands.replaying.results import results_in
from proxy.commands.running import HOST
from proxy.commands.serve import bound_socket, prepare
from proxy.conversations.totals import MILLION
from proxy.errors import CommandFailed
from proxy.settings import Settings
from proxy.values import word_at

if TYPE_CHECKING:
    from proxy.commands.wrap import Proxied

_RESULTS, _PROMPT = "condenser-prove.ndjson", "{prompt}"
_PLACE = "condenser-prove-"  # what the name of a run's temporary folder begins with
WITHOUT, WITH = "without", "with"
_GRACE, _LOOK = 5.0, 0.25  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEPT = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV")
"""The environment of a check: what programs need, none of which is a key."""
_QUANTITIES = ("money", "tokens", "requests", "seconds")
Record = Mapping[str, Any]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.usage = "condenser prove --tasks FILE [OPTION ...] -- COMMAND [ARGUMENT ...]"
    command.add_argument("--tasks", metavar="FILE", type=Path, required=True, help="the tasks")
    command.add_argument("--folder", metavar="FOLDER", type=Path, default=Path(), help="copied for each run (.)")
    command.add_argument("--repeat", metavar="N", type=positive, default=3, help="pairs of runs of each task (3)")
    command.add_argument("--parallel", metavar="N", type=positive, default=1, help="pairs at a time (1)")
    command.add_argument("--timeout", metavar="SECONDS", type=positive, default=1800, help="of a run or check (1800)")
    command.add_argument(
        "--budget", metavar="AMOUNT", type=amount, help="in money, or tokens for a model without prices"
    )
    command.add_argument("--results", metavar="FILE", type=Path, default=Path(_RESULTS), help=f"figures ({_RESULTS})")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_settings_arguments(command)
    command.add_argument("words", metavar="COMMAND", nargs="+", help="the command with its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    """Runs what is missing and prints a table; returns 1 if it ended early, 2 if the tasks cannot be read."""
    from proxy.commands.wrap import quiet

    tasks = _tasks(arguments.tasks)
    arguments.host, arguments.workers, arguments.single_user, arguments.store = HOST, 1, True, "memory://"
    settings = quiet(settings_from(arguments))
    prepare(settings)
    runs, pairs = _Runs(arguments, settings), [(task, nth) for nth in range(arguments.repeat) for task in tasks]
    progress = Progress(len(pairs))
    # Runs are in groups of their own: whatever ends this process must end them.
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        with ThreadPoolExecutor(arguments.parallel) as pool:
            try:
                for _ in pool.map(runs.pair, range(len(pairs)), pairs):
                    progress.step("pairs")
            except BaseException as error:
                for number in before:  # another signal must not leave what is being ended
                    signal.signal(number, signal.SIG_IGN)
                runs.stopped, runs.kills = runs.stopped or "interrupted", True  # the other threads end too
                if not isinstance(error, KeyboardInterrupt):
                    raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    found = {**summary(runs.pairs), "currency": settings.currency, "stopped": runs.stopped}
    print(json.dumps(found, indent=1) if arguments.json else table(found, str(arguments.results)))
    return FAILED if runs.stopped else OK


def _tasks(path: Path) -> list[Mapping[str, str]]:
    try:
        tasks = tomllib.loads(path.read_text("utf-8")).get("tasks") or []
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", USAGE) from None
    if not tasks or not all(word_at(each, name) for each in tasks for name in ("prompt", "check")):
        raise CommandFailed(f"{path} has no [[tasks]], or one without a prompt or a check", USAGE)
    return list(tasks)


class _Runs:
    """Runs pairs, each once; `stopped` says why no more are run, and `kills` ends those under way."""

    def __init__(self, arguments: argparse.Namespace, settings: Settings) -> None:
        self._given, self._lock, self.stopped, self.kills = arguments, threading.Lock(), "", False
        plain = tuple(each.model_copy(update={"strategy": None}) for each in settings.models)
        off = settings.model_copy(update={"strategy": "off", "models": plain})
        self._settings = {WITHOUT: off, WITH: settings}
        self._known = results_in(arguments.results)
        self._spent: dict[str, float] = {}  # by run, in money or tokens
        self._step = 0.0  # the most that was spent from one look to the next
        self.pairs: list[tuple[Record, Record]] = []

    def pair(self, turn: int, of: tuple[Mapping[str, str], int]) -> None:
        """Runs a task with and without condensing, the one first every other time."""
        found = {arm: self._once(*of, arm) for arm in ((WITH, WITHOUT) if turn % 2 else (WITHOUT, WITH))}
        without, condensed = found[WITHOUT], found[WITH]
        if without is not None and condensed is not None:
            self.pairs.append((without, condensed))

    def _once(self, task: Mapping[str, str], nth: int, arm: str) -> Record | None:
        """A run, from the file of results if it is there; None if it was stopped."""
        from proxy.commands.wrap import proxied

        settings, given = self._settings[arm], self._given
        words = [word.replace(_PROMPT, task["prompt"]) for word in given.words]
        words += [task["prompt"]] if words == given.words else []
        said = [*words, task["check"], given.upstream, settings.strategy, settings.economy, settings.window, nth, arm]
        key = blake2b(json.dumps(said).encode(), digest_size=12).hexdigest()
        # Each of those that run beside it may cost as much as the dearest so far.
        self._spend("", 0.0, given.parallel * max(self._spent.values(), default=0.0))
        if key in self._known or self.stopped:
            return self._known.get(key)
        with TemporaryDirectory(prefix=_PLACE, ignore_cleanup_errors=True) as place:
            work = Path(place) / "work"
            _copy(given.folder.resolve(), work, given.results.resolve())
            with bound_socket(HOST, 0) as listening, proxied(words, given.upstream, settings, listening) as found:
                began, look = monotonic(), partial(self._count, key, found)
                must_end = (lambda: bool(look(self._step)) and self.kills) if given.budget else (lambda: self.kills)
                status = ended(found.words, found.environment, work, given.timeout, must_end)
                measured = {"status": status, "seconds": round(monotonic() - began, 3), **look(0.0)}
            environment = {name: value for name, value in os.environ.items() if name in KEPT}
            check = ["/bin/sh", "-c", task["check"]], environment, work, given.timeout, lambda: self.kills
            checked = None if status is None else ended(*check)
            if checked is None and self.kills:
                return None
            record = {"key": key, "arm": arm, "solved": checked == 0, **measured}
        with self._lock, given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def _count(self, key: str, found: Proxied, next_step: float) -> dict[str, float]:
        """What a run has sent and cost so far."""
        from proxy.commands.wrap import asked_json

        answer = asked_json(found.url, "/_condenser/sums?hours=1", found.token)
        sums = Counter(answer.get("replica", {}))
        tokens = sums["prompt_tokens"] + sums["completion_tokens"] + sums["own_tokens"]
        cost, condensed = sums["cost"] + sums["own_cost"], sums["action_condensed"] + sums["action_replayed"]
        self._spend(key, cost / MILLION or tokens, next_step)
        return {"requests": sums["requests"], "condensed": condensed, "tokens": tokens, "money": cost / MILLION}

    def _spend(self, key: str, spent: float, next_step: float) -> None:
        """Notes what a run has cost so far; nothing more is run if the next step could exceed the budget."""
        with self._lock:
            if key:
                self._step = max(self._step, spent - self._spent.get(key, 0.0))
                self._spent[key] = spent
            if self._given.budget and sum(self._spent.values()) + next_step > self._given.budget and not self.stopped:
                self.stopped, self.kills = "more could exceed --budget", bool(key)


def _copy(folder: Path, work: Path, results: Path) -> None:
    """Copies a folder without links that lead out of it, and without what is neither a file nor a folder."""

    def stays(path: Path) -> bool:
        if path.is_symlink():
            return not path.readlink().is_absolute() and Path(os.path.realpath(path)).is_relative_to(folder)
        # Temporary folders may be inside: a copy must not have itself.
        return (path.is_dir() and not path.name.startswith(_PLACE)) or (path.is_file() and path != results)

    shutil.copytree(folder, work, symlinks=True, ignore=lambda at, names: [n for n in names if not stays(Path(at, n))])


def ended(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, most: float, is_over: Callable[[], bool]
) -> int | None:
    """The status of a command, run in a process group of its own, of which nothing is left; None if it was ended."""
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    try:
        process = subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True, **quiet)  # noqa: S603
    except OSError as error:
        raise CommandFailed(f"{words[0]}: {(error.strerror or '').lower()}", FAILED) from None
    until = monotonic() + most
    try:
        while monotonic() < until and not is_over():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK)
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        return None
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(pairs: Sequence[tuple[Record, Record]]) -> dict[str, Any]:
    """The figures of pairs (without, with): what each arm has solved and cost, and what the difference is at most."""
    fewer = [float(without["solved"]) - float(condensed["solved"]) for without, condensed in pairs]
    solved = {arm: sum(pair[at]["solved"] for pair in pairs) for at, arm in enumerate((WITHOUT, WITH))}
    return {
        "pairs": len(pairs),
        "solved": {**solved, "fewer": mean(fewer) if fewer else 0.0, "at_most": upper(fewer)},
        **{name: ratio([(without[name], condensed[name]) for without, condensed in pairs]) for name in _QUANTITIES},
        "shows": upper([0.0] * len(pairs)),
        "condensed": sum(condensed["condensed"] > 0 for _, condensed in pairs),
        "silent": sum(not record["requests"] for pair in pairs for record in pair),
        "statuses": dict(Counter(str(record["status"]) for pair in pairs for record in pair)),
    }


def table(found: Record, results: str) -> str:
    """The figures for a person."""
    solved, pairs = found["solved"], found["pairs"]
    points = (f"{100 * solved[name]:.0f} points fewer" for name in ("fewer", "at_most"))
    rows = [["solved", *(f"{solved[arm]:,} of {pairs:,}" for arm in (WITHOUT, WITH)), *points]]
    for name in filter(found.get, _QUANTITIES):
        title, of = f"bill, {found['currency']}" if name == "money" else name, found[name]
        totals = (f"{of[arm]:,.4g}" if of[arm] < 1_000 else f"{of[arm]:,.0f}" for arm in (WITHOUT, WITH))
        rows.append(
            [title, *totals, f"x {of['ratio']:.2f}", "-" if of["at_most"] is None else f"x {of['at_most']:.2f}"]
        )
    notes = [
        f"{pairs:,} pairs; in {found['condensed']:,} something was condensed. Ratios are medians. `At most` holds",
        f"at 95 % for these tasks; {pairs:,} pairs without a difference show {100 * found['shows']:.0f} points.",
        f"Exit statuses: {', '.join(f'{status} {number:,} times' for status, number in found['statuses'].items())}.",
    ]
    notes += [f"{found['silent']:,} runs sent no request through the proxy."] if found["silent"] else []
    stopped = f"Stopped: {found['stopped']}. The same command goes on; {results} has what was done."
    return "\n".join(
        [*grid(["", WITHOUT, WITH, "difference", "at most"], rows), "", *notes, *[stopped][: bool(found["stopped"])]]
    )
