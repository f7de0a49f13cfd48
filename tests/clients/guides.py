"""The guides as programs: a page's blocks run as a reader would run them, with the proxy's address in place of 8484."""

import contextlib
import gc
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients import agents
from tests.support.messages_upstream import StrictMessages
from tests.support.proxy import Proxy
from tests.support.replicas import ROOT, SERVE
from tests.support.responses_upstream import StrictResponses
from tests.support.upstream import ScriptedUpstream
from tests.test_docs import DOCS, rows, without_code

ADDRESS = "http://127.0.0.1:8484"
NODE_FOLDER = Path(__file__).parent / "node"
CLIENT_PAGES = DOCS / "guides" / "clients"
INDEX = CLIENT_PAGES / "index.md"
PATHS = {"Chat Completions": "/v1/chat/completions", "Messages": "/v1/messages", "Responses": "/v1/responses"}
PROGRAMS = ("python", "js", "sh")
PATIENCE = 100  # seconds for the programs of one page
KEYS = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CODEX_API_KEY"), "sk-tests")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and why it is not run, as the comment before it says."""

    language: str
    text: str
    excuse: str | None


def pages() -> list[Path]:
    """All pages whose blocks are programs for a reader."""
    return sorted(page for folder in ("guides", "start") for page in (DOCS / folder).rglob("*.md"))


def blocks(page: Path) -> list[Block]:
    fence = r"^(?:<!-- not run: ([^\n]+) -->\n+)?( *)```([\w-]*)\n(.*?)^\2```$"
    found = re.findall(fence, page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, text, excuse or None) for excuse, _, language, text in found]


def page_of(name: str) -> Path:
    """The page of a client."""
    return CLIENT_PAGES / f"{name}.md"


def code(page: Path, language: str, url: str) -> str:
    """All that a page has to run or to read in a language, with `url` in place of the address that it names."""
    text = "\n".join(each.text for each in blocks(page) if each.language == language and each.excuse is None)
    return text.replace(ADDRESS, url)


@contextmanager
def guides_upstream() -> Iterator[ScriptedUpstream]:
    """A server that greets in all three protocols."""
    messages, responses = StrictMessages(lambda body: "Hello."), StrictResponses(lambda body: "Hello.")
    with ScriptedUpstream() as upstream:
        upstream.answer(lambda asked: messages.answering(asked) or responses.answering(asked))
        yield upstream


@dataclass(frozen=True)
class Guides:
    """Runs pages before one proxy and one upstream, with a folder for what they write."""

    proxy: Proxy
    upstream: ScriptedUpstream
    folder: Path

    def run(self, page: Path, **files: str) -> list[str]:
        """What the programs of a page print, each request answered; settings go to the file of their language."""
        python, js = (code(page, language, self.proxy.url) for language in ("python", "js"))
        if js and not (shutil.which("node") and (NODE_FOLDER / "node_modules").is_dir()):
            pytest.skip(f"{page.name} is NOT TESTED: needs node and `npm ci` in {NODE_FOLDER} (make setup)")
        printed = [run_python(python)] if python else []
        printed += [run_node(js)] if js else []
        for block in blocks(page):
            if block.language in files:
                file = self.folder / files[block.language]
                file.parent.mkdir(exist_ok=True)
                file.write_text(block.text.replace(ADDRESS, self.proxy.url))
            elif block.language == "sh" and block.excuse is None:
                printed.append(self._run_shell(block.text))
        last = {each.path: each.status for each in self.proxy.journal if each.path in PATHS.values()}
        assert {*last.values()} <= {200}  # what Claude Code tries first, not every server takes
        return printed

    def _run_shell(self, script: str) -> str:
        """What `wrap` starts would reach the upstream without it."""
        addresses = {"ANTHROPIC_BASE_URL": self.upstream.url, "OPENAI_BASE_URL": self.upstream.base_url}
        wraps = script.count("condenser wrap")
        done = run_shell(script.replace(ADDRESS, self.proxy.url), self.folder, **addresses if wraps else {})
        assert done.stderr.count("condenser receipt") == wraps
        return done.stdout

    def __call__(self, name: str, **files: str) -> None:
        """A client's programs print what its page says, reach the upstream by its protocols, and name a session so."""
        page = page_of(name)
        expected = "passed" if re.search(r"prints? `passed`", said(page)) else "hello"
        assert all(expected in printed.lower() for printed in self.run(page, **files))
        assert {each.path for each in self.upstream.journal} & {*PATHS.values()} == protocols(name)
        sources = {each.response_header("x-condenser-session-source") or "-" for each in self.proxy.journal}
        assert any(source in page.read_text("utf-8") for source in sources)


def protocols(name: str) -> set[str]:
    """The paths of the protocols that the index says a client speaks."""
    (row,) = [row for row in rows(INDEX.read_text("utf-8")) if f"({name}.md)" in row["client"]]
    return {PATHS[each.strip()] for each in row["protocol"].split(",")}


def run_python(program: str) -> str:
    """What a program prints, in a thread of its own as it may need an event loop."""
    printed, failed = io.StringIO(), list[BaseException]()

    def running() -> None:
        scope = {"__name__": "__main__"}
        try:
            exec(compile(program, "guide", "exec"), scope)
        except BaseException as problem:  # noqa: BLE001 - raised below, in the test's thread
            failed.append(problem)
        scope.clear()

    # A short program leaves its connections to the end of the process, which here is not its own.
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=running)
        thread.start()
        thread.join(PATIENCE)
        gc.collect()
    if failed:
        raise failed[0]
    return printed.getvalue()


def run_node(program: str) -> str:
    node = shutil.which("node")
    assert node
    return _run([node, "--input-type=module", "-e", program], NODE_FOLDER, {}).stdout


COMMANDS = {
    "condenser": [sys.executable, "-c", SERVE],
    "claude": agents.command("claude", "@anthropic-ai/claude-code/cli-wrapper.cjs"),
    "codex": agents.command("codex", "@openai/codex/bin/codex.js"),
    **{name: [found] for name in ("aider", "opencode") if (found := shutil.which(name))},
}
"""All that a script may run: what a guide does to a machine of its reader's must not be done to this one."""


def run_shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script that has run in a home of its own; it finds the commands above and no other."""
    own = folder / "bin"
    own.mkdir(exist_ok=True)
    for place in ("objects", "refs"):  # Codex wants a repository
        (folder / ".git" / place).mkdir(parents=True, exist_ok=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    path = os.pathsep.join([str(own), os.environ["PATH"]])
    for name, words in ((name, words) for name, words in COMMANDS.items() if words):
        (own / name).write_text(f'#!/bin/sh\nPATH={shlex.quote(path)} exec {shlex.join(words)} "$@"\n')
        (own / name).chmod(0o700)
    home = {"PATH": str(own), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config"), "PYTHONPATH": str(ROOT)}
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "AIDER_CHECK_UPDATE": "false"}
    settings = {"CONDENSER_CONFIG": "", "CONDENSER_STORE__URL": "memory://"}
    return _run(["/bin/sh", "-eu", "-c", script], folder, {**home, **quiet, **settings, **variables})


def _run(command: list[str], folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **KEYS, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def said(page: Path) -> str:
    """What a page says in words."""
    return without_code(page.read_text("utf-8"))
