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
from hashlib import blake2b
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

from proxy.cli import FAILED, OK, USAGE
from proxy.commands.options import add_settings_arguments, amount, positive, settings_from
from proxy.commands.progress import Progress
from proxy.commands.replaying.agreement import ratio, shown_by, upper
from proxy.commands.replaying.report import grid
from proxy.commands.running import HOST
from proxy.commands.serve import bound_socket, prepare
from proxy.commands.wrap import Proxied, asked_json, proxied, quiet
from proxy.conversations.totals import MILLION
from proxy.errors import CommandFailed
from proxy.settings import Settings
from proxy.values import json_or_none, word_at

_RESULTS, _PROMPT = "condenser-prove.jsonl", "{prompt}"
WITHOUT, WITH = "without", "with"
_GRACE, _LOOK = 5.0, 0.25  # seconds
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
    command.add_argument(
        "--timeout", metavar="SECONDS", type=positive, default=1800, help="of a run, or a check (1800)"
    )
    command.add_argument(
        "--budget", metavar="AMOUNT", type=amount, help="in money; in tokens for models without prices"
    )
    command.add_argument("--results", metavar="FILE", type=Path, default=Path(_RESULTS), help=f"figures ({_RESULTS})")
    command.add_argument("--show", action="store_true", help="let the command print")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_settings_arguments(command)
    command.add_argument("words", metavar="COMMAND", nargs="+", help="the command with its arguments, after --")


class Task(NamedTuple):
    prompt: str
    check: str


def run(arguments: argparse.Namespace) -> int:
    """Runs what is missing and prints a table; returns 1 if it ended early, 2 if the tasks cannot be read."""
    tasks = _tasks(arguments.tasks)
    arguments.host, arguments.workers, arguments.single_user, arguments.store = HOST, 1, True, "memory://"
    settings = quiet(settings_from(arguments))
    prepare(settings)
    runs, number = _Runs(arguments, settings), arguments.repeat * len(tasks)
    pairs = [(task, nth, at + nth) for nth in range(arguments.repeat) for at, task in enumerate(tasks)]
    progress = Progress(number)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        try:
            for _ in pool.map(lambda pair: runs.pair(*pair), pairs):
                progress.step("pairs")
        except BaseException as error:
            runs.stopped, runs.kills = runs.stopped or "interrupted", True  # so that other threads end too
            if not isinstance(error, KeyboardInterrupt):
                raise
    found = {**summary(runs.pairs), "currency": settings.currency, "stopped": runs.stopped}
    print(json.dumps(found, indent=1) if arguments.json else table(found, str(arguments.results)))
    return FAILED if runs.stopped else OK


def _tasks(path: Path) -> list[Task]:
    try:
        listed = tomllib.loads(path.read_text("utf-8")).get("tasks")
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", USAGE) from None
    tasks = [Task(word_at(each, "prompt"), word_at(each, "check")) for each in listed or ()]
    if not tasks or not all(map(all, tasks)):
        raise CommandFailed(f"{path} has no [[tasks]], or one without a prompt or a check", USAGE)
    return tasks


class _Runs:
    """Runs pairs, each once; `stopped` says why no more are run, and `kills` ends those under way."""

    def __init__(self, arguments: argparse.Namespace, settings: Settings) -> None:
        self._given, self._lock, self.stopped, self.kills = arguments, threading.Lock(), "", False
        plain = tuple(each.model_copy(update={"strategy": None}) for each in settings.models)
        off = settings.model_copy(update={"strategy": "off", "models": plain})
        self._settings = {WITHOUT: off, WITH: settings}
        path: Path = arguments.results
        lines = map(json_or_none, path.read_text("utf-8").splitlines() if path.exists() else ())
        self._known: dict[str, Record] = {line["key"]: line for line in lines if word_at(line, "key")}
        self._spent: dict[str, float] = {}  # by run, in money or tokens
        self._step = 0.0  # the most that was spent from one look to the next
        self.pairs: list[tuple[Record, Record]] = []

    def pair(self, task: Task, nth: int, turn: int) -> None:
        """Runs a task with and without condensing, the one first every other time."""
        found = {arm: self._once(task, nth, arm) for arm in ((WITH, WITHOUT) if turn % 2 else (WITHOUT, WITH))}
        without, condensed = found[WITHOUT], found[WITH]
        if without is not None and condensed is not None:
            self.pairs.append((without, condensed))

    def _once(self, task: Task, nth: int, arm: str) -> Record | None:
        """A run, from the file of results if it is there; None if it was stopped."""
        settings = self._settings[arm]
        words = [word.replace(_PROMPT, task.prompt) for word in self._given.words]
        words += [task.prompt] if words == self._given.words else []
        said = [*words, task.check, settings.strategy, settings.economy, settings.window, nth, arm]
        key = blake2b(json.dumps(said).encode(), digest_size=12).hexdigest()
        # Each of those that run beside it may cost as much as the dearest so far.
        self._spend("", 0.0, self._given.parallel * max(self._spent.values(), default=0.0))
        if key in self._known or self.stopped:
            return self._known.get(key)
        with TemporaryDirectory(prefix="condenser-prove-", ignore_cleanup_errors=True) as place:
            work = Path(place) / "work"
            _copy(self._given.folder.resolve(), work, self._given.results.resolve())
            measured = self._measured(key, words, settings, work)
            if self.kills and measured["status"] is None:
                return None
            environment = {name: value for name, value in os.environ.items() if name in KEPT}
            checked = ["/bin/sh", "-c", task.check], environment, work, self._given.timeout
            solved = measured["status"] is not None and ended(*checked, lambda: self.kills) == 0
        record = {"key": key, "nth": nth, "arm": arm, "solved": solved, **measured}
        with self._lock, self._given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def _measured(self, key: str, words: Sequence[str], settings: Settings, work: Path) -> Record:
        """What the proxy has counted at the end of the command, whose status is None if it was ended."""
        with bound_socket(HOST, 0) as listening, proxied(words, self._given.upstream, settings, listening) as found:
            if found is None:
                raise CommandFailed("the proxy did not start", FAILED)
            began, command = monotonic(), (found.words, found.environment, work, self._given.timeout)
            status = ended(*command, lambda: self._look(key, found, self._step)[1], shows=self._given.show)
            seconds, (record, _) = monotonic() - began, self._look(key, found, 0.0)
        return {"status": status, "seconds": round(seconds, 3), **record}

    def _look(self, key: str, found: Proxied, next_step: float) -> tuple[dict[str, float], bool]:
        """What a run has cost so far, and whether it must end."""
        answer = asked_json(found.url, "/_condenser/sums?hours=1", found.token)
        sums = Counter(answer.get("replica", {}))
        record = {
            "requests": sums["requests"],
            "condensed": sums["action_condensed"] + sums["action_replayed"],
            "tokens": sums["prompt_tokens"] + sums["completion_tokens"] + sums["own_tokens"],
            "money": (sums["cost"] + sums["own_cost"]) / MILLION,
        }
        self._spend(key, record["money"] or record["tokens"], next_step)
        return record, self.kills

    def _spend(self, key: str, spent: float, next_step: float) -> None:
        """Notes what a run has cost so far; nothing more is run if the next step could exceed the budget."""
        with self._lock:
            if key:
                self._step = max(self._step, spent - self._spent.get(key, 0.0))
                self._spent[key] = spent
            if self._given.budget and sum(self._spent.values()) + next_step > self._given.budget and not self.stopped:
                self.stopped = "more could exceed --budget"
                self.kills = bool(key)


def _copy(folder: Path, work: Path, results: Path) -> None:
    """Copies a folder without links that lead out of it, and without what is neither a file nor a folder."""

    def left_out(place: str, names: list[str]) -> list[str]:
        return [name for name in names if not _stays(Path(place, name), folder) or Path(place, name) == results]

    shutil.copytree(folder, work, symlinks=True, ignore=left_out)


def _stays(path: Path, folder: Path) -> bool:
    if path.is_symlink():
        return not path.readlink().is_absolute() and path.resolve().is_relative_to(folder)
    return path.is_dir() or path.is_file()


def ended(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    most: float,
    is_over: Callable[[], bool],
    *,
    shows: bool = False,
) -> int | None:
    """The status of a command, run in a process group of its own, of which nothing is left; None if it was ended."""
    output = None if shows else subprocess.DEVNULL
    try:
        process = subprocess.Popen(  # noqa: S603
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
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
    ratios = {name: ratio([(without[name], condensed[name]) for without, condensed in pairs]) for name in _QUANTITIES}
    return {
        "pairs": len(pairs),
        "solved": {**solved, "fewer": mean(fewer) if fewer else 0.0, "fewer_at_most": upper(fewer)},
        "shows": shown_by(len(pairs)),
        **{name: found and found._asdict() for name, found in ratios.items()},
        "condensed": sum(condensed["condensed"] > 0 for _, condensed in pairs),
        "silent": sum(not record["requests"] for pair in pairs for record in pair),
        "statuses": dict(Counter(str(record["status"]) for pair in pairs for record in pair)),
    }


def table(found: Record, results: str) -> str:
    """The figures for a person."""
    solved, pairs = found["solved"], found["pairs"]
    points = f"{100 * solved['fewer']:.0f} points fewer", f"{100 * solved['fewer_at_most']:.0f} points fewer"
    rows = [["solved", *(f"{solved[arm]:,} of {pairs:,}" for arm in (WITHOUT, WITH)), *points]]
    for name in _QUANTITIES:
        if each := found[name]:
            title = f"bill, {found['currency']}" if name == "money" else name
            totals = (
                f"{each[arm]:,.4g}" if each[arm] < 1_000 else f"{each[arm]:,.0f}" for arm in ("without", "condensed")
            )
            most = "-" if each["most"] is None else f"x {each['most']:.2f}"
            rows.append([title, *totals, f"x {each['middle']:.2f}", most])
    notes = [
        f"{pairs:,} pairs; in {found['condensed']:,} something was condensed. Ratios are medians. `At most` holds",
        f"at 95 % for these tasks; {pairs:,} pairs without a difference show {100 * found['shows']:.0f} points.",
        f"Exit statuses: {', '.join(f'{status} {number:,} times' for status, number in found['statuses'].items())}.",
    ]
    notes += [f"{found['silent']:,} runs sent no request through the proxy."] if found["silent"] else []
    notes += (
        [f"Stopped: {found['stopped']}. The same command goes on; {results} has what was done."]
        if found["stopped"]
        else []
    )
    return "\n".join([*grid(["", WITHOUT, WITH, "difference", "at most"], rows), "", *notes])
