"""`replay --live` and `prove` before a small real model: it is noisy, and the bounds say so."""

import json
import sys
from pathlib import Path

import pytest

from tests.live import next_action
from tests.live.llama import MODEL, ROOT, llama
from tests.proxy.command_line import run

pytestmark = [pytest.mark.live, pytest.mark.timeout(1_800)]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "CONDENSER_CONFIG": "",
        "CONDENSER_MARKS__MOST": str(next_action.MOST),
        "DESK_MODEL": MODEL,
    }.items():
        monkeypatch.setenv(name, value)


def test_the_next_action_of_a_small_model_has_wide_bounds() -> None:
    live = json.loads(next_action.measured(3, 1.5, 1, ["mask+extract"]))["live"]
    (action,) = [each for each in live["agreement"] if (each["of"], each["by"]) == ("mask+extract", "action")]
    assert (live["stopped"], live["failures"], action["requests"], action["sessions"]) == ("", {}, 3, 3)
    assert action["shows"] <= action["most"] <= 1
    assert action["least"] <= action["view"] <= 1
    assert live["spent"][1] > 3 * next_action.MOST
    assert all(min(each["seconds"]) > 0 for each in live["measured"])


def test_the_sample_tasks_are_run_with_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ROOT / "eval" / "tasks"
    with llama(n_ctx=4_096, n_parallel=1, n_batch=256, n_ubatch=256) as url:
        given = ["--tasks", str(tasks / "tasks.toml"), "--folder", str(tasks / "desk"), "--upstream", f"{url}/v1"]
        options = ["--repeat", "1", "--window", "1700", "--json"]
        code, out, err = run(capsys, "prove", *given, *options, "--", sys.executable, "agent.py")
    found = json.loads(out)
    assert code == 0, err
    assert (found["pairs"], found["condensed"], found["silent"], found["statuses"]) == (5, 5, 0, {"0": 10})
    assert found["tokens"]["with"] < found["tokens"]["without"]
    assert found["solved"]["fewer"] <= found["solved"]["at_most"]
