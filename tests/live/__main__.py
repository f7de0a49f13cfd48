"""`make live` runs the tests before a real model server; `make live ARGS=turns` measures what turns cost there."""

import sys

import pytest

from tests.live import turns

if __name__ == "__main__":
    if sys.argv[1:2] == ["turns"]:
        turns.run(sys.argv[2:])
        sys.exit()
    sys.exit(pytest.main(["-m", "live", "-p", "no:cacheprovider", *(sys.argv[1:] or ["tests/live"])]))
