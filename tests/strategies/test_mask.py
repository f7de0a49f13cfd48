"""`mask`: old results and large arguments become lines; nothing else changes."""

import json
from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.errors import Declined
from strategies.core.handles import handle_of
from strategies.core.pieces import Keep
from strategies.core.plan import apply, head_pieces
from strategies.core.transcript import Transcript
from strategies.core.view import View
from tests.strategies.driving import condensed, later, plan_of, stages_of, texts
from tests.support.transcripts import (
    Body,
    agent,
    assistant,
    bodies_of,
    call,
    from_cache,
    step,
    tool,
    transcript_of,
    user,
    view_of,
    words,
)

BUDGET = Budget.of(8_000, reserve=0)


def masked(bodies: list[Body], budget: Budget = BUDGET, **options: Any) -> View:
    return condensed("mask", view_of(bodies), budget, **options)


def read(number: int, path: str, size: int = 200) -> list[Body]:
    return step(number, size, "read_file", {"path": path})


def write(number: int, path: str, text: str) -> list[Body]:
    call_id = f"c{number}"
    return [assistant(None, call(call_id, "write_file", {"path": path, "content": text})), tool(call_id, "written")]


def is_masked(text: str) -> bool:
    return text.startswith("[result of ")


def results(view: View) -> list[bool]:
    """For each result of a view, whether it is masked."""
    return [is_masked(str(body["content"])) for body in bodies_of(view) if body["role"] == "tool"]


def test_a_masked_result_says_what_was_left_out() -> None:
    bodies = [user("go"), *step(9, 100), *agent(3)[2:]]
    size = len(bodies[2]["content"])
    line = texts(masked(bodies))[2]
    original = view_of(bodies).items[2].message
    handle = handle_of(original)
    assert line == f"[result of bash left out: {size} characters, {original.tokens} tokens; handle {handle}]"


def test_a_masked_file_may_have_changed_since() -> None:
    old, new = read(0, "src/a.py", 200), read(1, "src/a.py", 200)
    bodies = [user("go"), *old, *new, *agent(3)[2:]]
    lines = texts(masked(bodies))
    handle = handle_of(view_of(bodies).items[2].message)
    assert lines[2].startswith("[result of read_file on src/a.py left out: ")
    assert lines[2].endswith(f"; src/a.py may have changed since; handle {handle}]")
    assert not is_masked(lines[4])


def test_an_older_run_of_a_command_leaves_its_excerpt_to_the_newest() -> None:
    runs = [body for number in range(3) for body in run_of(number, f"{words(200)}\n{number} failed")]
    lines = texts(masked([user("go"), *runs, *agent(3)[2:]]))
    assert ["; run again later;" in lines[at] for at in (2, 4, 6)] == [True, True, False]
    assert ["\n" in lines[at] for at in (2, 4, 6)] == [False, False, True]
    assert lines[6].endswith("\n2 failed")


def run_of(number: int, printed: str) -> list[Body]:
    return [assistant(None, call(f"r{number}", "bash", {"command": "make test"})), tool(f"r{number}", printed)]


@pytest.mark.parametrize("keep", [1, 3, 5])
def test_the_newest_rounds_stay(keep: int) -> None:
    assert results(masked(agent(8, size=100), keep=keep)) == [True] * (8 - keep) + [False] * keep


def test_the_newest_round_stays_though_a_user_message_follows_it() -> None:
    assert results(masked([*agent(4, size=100), user("so?")], keep=1)) == [True, True, True, False]


@pytest.mark.parametrize(("min_tokens", "stays"), [(30, False), (500, True)])
def test_what_counts_as_small_is_an_option(min_tokens: int, stays: bool) -> None:
    bodies = [user("go"), *step(0, 100), *step(1, 900), *agent(4, size=100)[1:]]
    assert results(masked(bodies, min_tokens=min_tokens))[:2] == [not stays, True]


@pytest.mark.parametrize(("min_chars", "stays"), [(100, False), (9_000, True)])
def test_what_counts_as_a_large_argument_is_an_option(min_chars: int, stays: bool) -> None:
    bodies = [user("go"), *write(90, "a.txt", "x" * 900), *agent(6, size=100)[1:]]
    view = masked(bodies, min_chars=min_chars, paths=0)
    assert ("left out" in view.items[1].message.raw) is not stays


def test_nothing_to_mask_is_said() -> None:
    with pytest.raises(Declined) as declined:
        masked(agent(3, size=500))
    assert declined.value.reason == "nothing-to-mask"


def test_no_message_disappears_and_calls_keep_their_results() -> None:
    bodies = [
        user("go"),
        assistant("both", call("a"), call("b", "grep")),
        tool("b", words(100)),
        tool("a", words(100)),
        *agent(3)[2:],
    ]
    sent = bodies_of(masked(bodies))
    assert [(body["role"], body.get("tool_call_id")) for body in sent] == [
        (body["role"], body.get("tool_call_id")) for body in bodies
    ]
    assert sent[2]["content"].startswith("[result of grep")
    assert sent[3]["content"].startswith("[result of bash")


def test_results_of_one_id_are_told_apart_by_their_order() -> None:
    bodies = [
        user("go"),
        assistant(None, call("x", "first"), call("x", "second")),
        tool("x", words(100)),
        tool("x", words(100)),
        *agent(3)[2:],
    ]
    lines = texts(masked(bodies))
    assert lines[2].startswith("[result of first")
    assert lines[3].startswith("[result of second")


def test_the_newest_whole_content_of_a_file_stays() -> None:
    view = masked([user("go"), *read(0, "a.py"), *read(1, "b.py"), *read(2, "a.py"), *agent(3)[2:]])
    assert results(view)[:3] == [True, False, False]


def test_a_file_in_a_kept_round_need_not_stay_twice() -> None:
    view = masked([user("go"), *read(0, "a.py"), *read(1, "b.py"), *agent(2)[2:], *read(9, "a.py")], keep=3)
    assert results(view)[:2] == [True, False]


def test_files_stay_newest_first_while_they_fit() -> None:
    """1,000 usable with a share of 0.4: 400 tokens hold one file of 200 and a little, not two."""
    bodies = [user("go"), *read(0, "a.py"), *read(1, "b.py"), *read(2, "c.py"), *agent(3)[2:]]
    assert results(masked(bodies, Budget.of(1_000, reserve=0)))[:3] == [True, True, False]
    assert results(masked(bodies, Budget.of(1_200, reserve=0), paths=0.5))[:3] == [True, False, False]
    assert results(masked(bodies, paths=0))[:3] == [True, True, True]


@pytest.mark.parametrize(
    "arguments", [{"path": "a.py", "offset": 5}, {"path": "a.py", "pattern": "def"}], ids=["part", "search"]
)
def test_a_part_of_a_file_is_not_its_newest_content(arguments: dict[str, Any]) -> None:
    bodies = [user("go"), *read(0, "a.py"), *step(1, 100, "look", arguments), *agent(3)[2:]]
    assert results(masked(bodies))[:2] == [False, True]


def test_large_arguments_of_old_calls_are_masked_and_stay_valid_json() -> None:
    text = "line\n" * 300
    bodies = [user("go"), *write(0, "a.py", text), *write(1, "a.py", text + "x"), *agent(3)[2:]]
    sent = bodies_of(masked(bodies))
    old, new = (json.loads(sent[i]["tool_calls"][0]["function"]["arguments"]) for i in (1, 3))
    handle = handle_of(view_of(bodies).items[1].message)
    told = f"[1,500 characters left out; a.py may have changed since; handle {handle}]"
    assert old == {"path": "a.py", "content": told}
    assert new["content"] == text + "x"
    assert sent[2]["content"] == "written"


def test_a_message_whose_arguments_stay_is_not_written_again() -> None:
    bodies = [user("go"), *write(0, "a.py", "short"), *agent(6, size=100)[2:]]
    view = condensed("mask", from_cache(view_of(bodies)), BUDGET, keep=2)
    assert head_pieces(view)[:2] == (Keep(0), Keep(1))


def test_arguments_that_are_no_json_object_stay() -> None:
    bodies = [user("go"), assistant(None, call("a", "f", "x" * 2_000)), tool("a", words(100)), *agent(3)[2:]]
    assert bodies_of(masked(bodies))[1] == bodies[1]


def test_values_that_are_no_long_texts_stay_in_masked_arguments() -> None:
    arguments = {"lines": list(range(500)), "note": "修" * 500, "flag": True, "n": None}
    bodies = [user("go"), assistant("hm", call("a", "f", arguments)), tool("a"), *agent(3)[2:]]
    sent = bodies_of(masked(bodies))[1]
    assert sent["content"] == "hm"
    found = json.loads(sent["tool_calls"][0]["function"]["arguments"])
    handle = handle_of(view_of(bodies).items[1].message)
    assert found == {**arguments, "note": f"[500 characters left out; handle {handle}]"}


def test_calls_of_an_odd_shape_keep_their_places() -> None:
    """A client's broken entry among the calls must not shift or drop the ones behind it."""
    odd: Body = {"role": "assistant", "content": None, "tool_calls": [None, call("a", "f", {"text": "x" * 900})]}
    bodies = [user("go"), odd, tool("a"), *agent(3)[2:]]
    sent = bodies_of(masked(bodies))[1]["tool_calls"]
    handle = handle_of(view_of(bodies).items[1].message)
    assert sent[0] is None
    assert json.loads(sent[1]["function"]["arguments"]) == {"text": f"[900 characters left out; handle {handle}]"}


def test_output_that_comes_as_a_user_message_is_masked_as_one() -> None:
    rounds = [
        body for i in range(6) for body in (assistant(f"ls {i}"), user(f"<returncode>0</returncode>\n{words(100)}"))
    ]
    view = masked([user("go"), *rounds])
    assert [is_masked(text) for text in texts(view)[2::2]] == [True, True, True, False, False, False]
    assert bodies_of(view)[2]["role"] == "user"


def test_what_is_masked_stays_masked_and_the_next_time_more_is() -> None:
    bodies = agent(8, size=100)
    first = masked(bodies)
    grown: Transcript = transcript_of([*bodies, *step(8, 100), *step(9, 100)])
    (strategy,) = stages_of("mask")
    second = apply(later(first, grown), plan_of(strategy, later(first, grown), BUDGET))
    assert results(second) == [True] * 7 + [False] * 3
    assert second.to_json().startswith(first.to_json()[:400])


def test_its_metadata_counts() -> None:
    (strategy,) = stages_of("mask")
    view = view_of([user("go"), *read(0, "a.py"), *step(1, 100), *agent(3)[2:]])
    assert plan_of(strategy, view, BUDGET).metadata == {"maskedMessageCount": 1, "keptFileCount": 1}


@pytest.mark.parametrize(
    ("goal", "kept"), [(2_000, 3), (1_000, 2), (750, 1), (300, 3)], ids=["reached", "with 2", "with 1", "out of reach"]
)
def test_fewer_rounds_stay_where_only_that_meets_the_goal(goal: int, kept: int) -> None:
    view = masked(agent(6, size=300), BUDGET.with_goal(goal))
    assert results(view) == [True] * (6 - kept) + [False] * kept


@pytest.mark.parametrize(
    ("output", "excerpt"),
    [
        (f"12 passed, 0 failed\nTypeError: no parser\n{words(300)}\nno errors in lint", "TypeError: no parser"),
        (f"begun\n{words(300)}\nbuilt in 3 s\n", "built in 3 s"),
    ],
    ids=["its error", "without one its last line"],
)
def test_what_cannot_be_read_again_leaves_an_excerpt(output: str, excerpt: str) -> None:
    made = [assistant(None, call("m", "bash", {"command": "make"})), tool("m", output)]
    said = texts(masked([user("go"), *made, *agent(6)[2:]]))
    assert any("left out" in text and f"\n{excerpt}" in text for text in said)


def test_a_file_can_be_read_again_and_leaves_none() -> None:
    said = texts(masked([user("go"), *read(0, "a.py"), *read(1, "a.py"), *agent(6)[2:]]))
    assert [text for text in said if "read a.py again" in text and "\n" in text] == []
