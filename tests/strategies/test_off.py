"""`off` never changes anything."""

import pytest
from hypothesis import given

from strategies.core.budget import Budget
from strategies.core.errors import Declined
from strategies.core.plan import Plan, apply
from strategies.core.requirement import Requirement
from tests.strategies.driving import attempted, plan_of, stages_of
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import Body, agent, conversations, view_of


@given(bodies=conversations(broken=True))
@STABLE
def test_its_plan_has_no_edits_and_its_view_is_the_transcript(bodies: list[Body]) -> None:
    (off,) = stages_of("off")
    view = view_of(bodies)
    plan = plan_of(off, view, Budget.of(300))
    assert plan == Plan(())
    assert apply(view, plan).to_json() == view.to_json()
    assert not apply(view, plan).is_changed


def test_a_pipeline_of_it_makes_no_record() -> None:
    with pytest.raises(Declined, match="no-progress"):
        attempted(Requirement.SOFT, "off", view_of(agent(10)), Budget.of(300))
