"""Tags in an answer are read in pairs, first opening to next closing one."""

import pytest

from strategies.core.parsing import tag_contents, without_tags


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("one", [], "one"),
        ("<t>a</t>", ["a"], ""),
        ("0 <t>a</t> 1 <t></t> 2", ["a", ""], "0  1  2"),
        ("<t>a<t>b</t>c</t>", ["a<t>b"], "c</t>"),
        ("</t><t>a</t><t>b", ["a"], "</t><t>b"),
        ("<T>a</T>", [], "<T>a</T>"),
    ],
)
def test_what_stands_in_tags_is_parted_from_what_does_not(text: str, inside: list[str], outside: str) -> None:
    assert list(tag_contents(text, "t")) == inside
    assert without_tags(text, "t") == outside
