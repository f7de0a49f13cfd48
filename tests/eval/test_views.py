"""What is read of views: what messages say, where names stand, when requests are sent."""

from eval.views import record_in, said, sparse_ends, stands
from tests.support.transcripts import assistant, call, user


def test_a_message_says_its_text_and_the_values_of_its_calls() -> None:
    assert said(assistant("Now.", call("c", "run", {"path": "a.py", "at": [1, {"deep": "b"}]}))) == "Now.\na.py\n1\nb"


def test_a_name_stands_in_a_text_only_by_itself() -> None:
    assert stands("run.py", "see /src/run.py, line 3")
    assert not stands("run.py", "see rerun.py")
    assert not stands("ORD-47", "ORD-4711")
    assert stands("文件", "打开文件夹")


def test_requests_come_apart_and_the_last_one_has_everything() -> None:
    messages = [message for _ in range(6) for message in (user("a" * 50), assistant("b" * 50))]
    assert list(sparse_ends(messages, 150)) == [3, 7, 11, 12]


def test_no_record_is_found_where_nothing_is_condensed() -> None:
    assert record_in([user("Hello."), assistant("[Condensed history] is what?")]) == ""
