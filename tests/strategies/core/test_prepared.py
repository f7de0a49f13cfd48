"""Prepared condensations: which one a view may apply, and by how much it must shrink the view."""

from dataclasses import replace

import pytest

from strategies.core.budget import Budget
from strategies.core.condensation import JUDGED, Condensation, best_prepared
from strategies.core.requirement import Requirement
from strategies.core.view import View
from tests.strategies.driving import attempted, judged_session
from tests.strategies.test_session_simulation import recorded_as
from tests.support.transcripts import Body, assistant, chat, user, view_of, words

ROOMY = Budget.of(100_000)


def prepared(bodies: list[Body], trigger: str) -> Condensation:
    """A record of all but the newest of these messages, made for later."""
    view = view_of(bodies)
    outcome = attempted(Requirement.PREPARE, "dynacontext", view, ROOMY, session=judged_session(view))
    record = recorded_as(outcome.view, ROOMY, view.tokens)
    return replace(record, trigger=trigger, standing=False)


def is_used(record: Condensation, view: View, least_shrink: float = 0.10) -> bool:
    found = best_prepared(view, None, (record,), ROOMY, least_shrink=least_shrink)
    assert found is None or found.view.tokens < view.tokens
    return found is not None


@pytest.mark.parametrize(("trigger", "is_taken"), [(JUDGED, True), ("threshold", False)])
def test_newer_messages_do_not_outdate_a_judges_record(trigger: str, is_taken: bool) -> None:
    bodies = chat(4, size=100)
    record = prepared(bodies, trigger)
    assert is_used(record, view_of(bodies))
    grown = view_of([*bodies, assistant(words(20_000)), user("?")])
    assert is_used(record, grown) is is_taken
    assert is_used(record, grown, least_shrink=0.0)


def test_a_judges_record_must_make_a_view_smaller() -> None:
    bodies = chat(4, size=100)
    record = prepared(bodies, JUDGED)
    thin = [{**each, "content": "a"} for each in bodies]
    longer = replace(record, digest=view_of(thin).transcript.digests[record.covered - 1])
    assert is_used(record, view_of(bodies))
    assert not is_used(longer, view_of(thin))
