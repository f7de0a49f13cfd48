"""What stands beside the list of a request: marks and headers of its body, and members that bind the list."""

import json

from tests.support.stage import body_of, chat, controls, proxy_with_upstream

MARK = b"\xef\xbb\xbf"


def test_a_body_with_a_byte_order_mark_is_read_and_keeps_it() -> None:
    with proxy_with_upstream() as stage:
        short, long = (MARK + body_of(chat(rounds)) for rounds in (1, 40))
        assert stage.post(short, controls(session="s")).action == "passed"
        assert stage.upstream.journal.only().body == short
        for _ in range(2):  # read as a whole, and through the cache
            assert stage.post(long, controls(session="s")).action in ("condensed", "replayed")
            sent = stage.forwarded[-1].body
            assert sent.startswith(MARK)
            assert len(json.loads(sent)["messages"]) < len(chat(40))
        assert stage.post(MARK + MARK + body_of(chat(1))).status == 400
