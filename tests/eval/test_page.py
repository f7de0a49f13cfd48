from pathlib import Path

import pytest

from eval.__main__ import PAGE, figure, main, page
from eval.arms import ARMS, STRATEGIES
from eval.measure import Cell, Figure, tally
from tests.eval.building import dialogue_file, dialogues, long_dialogue
from tests.support.transcripts import WORDS


def test_the_interval_is_wilsons() -> None:
    low, high = Figure(50, 100).interval

    assert (round(low, 1), round(high, 1)) == (40.4, 59.6)
    assert Figure(0, 10).interval[0] == 0.0
    assert Figure(10, 10).interval[1] == pytest.approx(100.0)


def test_a_figure_is_told_with_its_interval() -> None:
    assert figure(Figure(50, 100)) == "50 (40-60)"


def test_outcomes_are_counted_by_cell() -> None:
    one: Cell = ("inject", "en", 4)
    other: Cell = ("inject", "zh", 4)

    assert tally([(one, True), (one, False), (other, False)]) == {one: Figure(1, 2), other: Figure(0, 1)}


@pytest.mark.torture
def test_the_page_has_a_row_for_each_arm_and_strategy(tmp_path: Path) -> None:
    text = page(dialogues(tmp_path), WORDS)

    assert all(told in text for told, _ in ARMS.values())
    assert all(f"| `{name}` | inject |" in text for name in STRATEGIES)
    assert "English: 4 questions to 1 dialogues" in text
    assert "Chinese" not in text.split("## ")[1]


def test_a_file_without_dialogues_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path / "none.jsonl")]) == 1
    assert main(["--data", str(dialogue_file(tmp_path, long_dialogue(qa=[])))]) == 1
    assert "has questions" in capsys.readouterr().err


def test_the_page_in_the_documents_is_one_that_the_command_wrote() -> None:
    text = PAGE.read_text("utf-8")

    assert "{" not in text
    assert all(told in text for told, _ in ARMS.values())
