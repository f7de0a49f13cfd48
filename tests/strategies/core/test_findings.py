"""What rules read of messages, beyond what strategies show of it."""

from strategies.core.findings import newest_of_files
from tests.support.transcripts import assistant, call, tool, transcript_of, user, words
from tests.support.transcripts import step as other


def test_the_newest_result_counts_of_each_file_that_an_agent_has_come_back_to() -> None:
    bodies = [user("Fix it.")]
    for number, (path, size) in enumerate([("a.py", 300), ("b.py", 200), ("a.py", 40), ("a.py", 70)]):
        bodies += [assistant(None, call(f"c{number}", "read", {"path": path})), tool(f"c{number}", words(size))]
    chain = transcript_of([*bodies, *other(9, 500)]).chain
    assert newest_of_files(chain) == chain[8].tokens
    assert 70 <= chain[8].tokens < 100
    assert newest_of_files(chain[:5]) == 0
