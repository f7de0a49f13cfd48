"""A record and its changes become the next record."""

from strategies.core.changes import Changes

CHANGES = Changes("rolling-changes", ("Goal", "Key Facts", "Important Snippets"), "Obsolete")
EARLIER = "Goal: a garden\nKey Facts:\n- The port is 48613.\n- The budget is $240.\nImportant Snippets:\nif a {\n}"


def test_what_is_new_stands_behind_what_its_heading_had() -> None:
    told = "Key Facts: The gate is blue.\n- The budget is $240.\nImportant Snippets:\nif b {\n}"
    assert CHANGES.applied(EARLIER, told).splitlines() == [
        *("Goal: a garden", "Key Facts:", "- The port is 48613.", "- The budget is $240.", "The gate is blue."),
        *("Important Snippets:", "if a {", "}", "if b {", "}"),
    ]


def test_a_line_that_the_model_calls_obsolete_goes_if_it_is_copied_exactly() -> None:
    told = (
        "## Key Facts\n- The budget is $956.\n**Obsolete:** The budget is $240.\nThe port is 4861.\n- Goal: a garden\n}"
    )
    changed = CHANGES.applied(EARLIER, told)
    assert "$240" not in changed
    assert "a garden" in changed  # under a mark of a list it is no copy of the line
    assert changed.splitlines()[1:4] == ["Key Facts:", "- The port is 48613.", "- The budget is $956."]
    assert changed.endswith("if a {\n}")
    assert CHANGES.applied(EARLIER, "Obsolete: Goal: a garden").startswith("Key Facts:")


def test_a_heading_that_the_record_lacks_comes_in_its_place_and_other_text_first() -> None:
    assert CHANGES.applied("Key Facts: a bed", "Wholly new.\nGoal: a garden") == (
        "Wholly new.\nGoal: a garden\nKey Facts: a bed"
    )


def test_only_a_record_with_headings_takes_changes() -> None:
    assert CHANGES.fit(EARLIER)
    assert not CHANGES.fit("The user said: Goal and Key Facts.")
    assert not CHANGES.fit("")
