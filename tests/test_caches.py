"""Nothing of what one tenant has sent makes the same quicker for another: what is cached for all has no content."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strategies.core.cards import MemoryCard
from strategies.core.findings import said_in, users_names_in
from strategies.core.messages import ROOT, Role, chain
from strategies.memory.ranking import Entry, Index
from tests.support.transcripts import message, user

ROOT_OF_CODE = Path(__file__).parent.parent
FOR_ALL = {
    "proxy/commands/proxy_client.py": {"_say_once"},  # in a command, of lines that it has said
    "proxy/log.py": {"_second"},
    "proxy/bodies/wire.py": {"_opening"},  # by the name of a protocol's list
    "proxy/conversations/searching.py": {"definition", "_tokens"},  # of our own tool, by the tenant's counter
    "proxy/tokens/media.py": {"media_prices"},  # by model
    "proxy/tokens/ranks.py": {"load"},
    "proxy/tokens/models.py": {"_read"},
    "proxy/servers/upstream/__init__.py": {"_address", "_trusting"},
    "strategies/__init__.py": {"_parse"},  # by names of strategies
    "strategies/keywords/__init__.py": {"keywords"},
    "strategies/prompts/__init__.py": {"prompt", "prompt_digest"},
}
TEXT = "We told Maria that build/out-7.tar of release v2.31.9 must never be deployed to staging-eu-4 on Fridays."


def cached_for_all(path: Path) -> set[str]:
    """The functions of a module whose results are kept for the whole process."""
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("cache" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_what_is_kept_for_the_whole_process_has_no_content_of_requests() -> None:
    modules = [path for folder in ("proxy", "strategies") for path in (ROOT_OF_CODE / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT_OF_CODE)): cached_for_all(path) for path in modules}
    assert {name: functions for name, functions in found.items() if functions} == FOR_ALL


def steps(work: Callable[[], Any]) -> int:
    """The calls that some work makes."""
    number = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


@pytest.mark.parametrize(
    "work",
    [
        lambda: (said_in(message(user(TEXT))), users_names_in(message(user(TEXT)))),
        lambda: Index([Entry("k", Role.USER, TEXT, 0)]).search("deployed builds"),
        lambda: chain([bytes([number]) * 16 for number in range(9)], ROOT),
        lambda: MemoryCard(TEXT).id,
    ],
    ids=["findings", "index", "chain", "id of a card"],
)
def test_the_same_text_is_as_much_work_again(work: Callable[[], Any]) -> None:
    work()  # compiles patterns
    assert steps(work) == steps(work) > 0
