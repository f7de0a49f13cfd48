"""`make live` runs the tests before a real model server; `ARGS=turns` and `ARGS=next` measure something there."""

import sys

import pytest

from tests.live import next_action, turns
from tests.live.llama import IS_VLLM

if __name__ == "__main__":
    if sys.argv[1:2] in (["turns"], ["next"]):
        if IS_VLLM:
            sys.exit(f"ARGS={sys.argv[1]} measures llama.cpp's server: leave SERVER out")
        (turns if sys.argv[1] == "turns" else next_action).run(sys.argv[2:])
        sys.exit()
    # A test here may take as long as its own mark allows.
    options = ["-m", "live", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=1800"]
    sys.exit(pytest.main([*options, *(sys.argv[1:] or ["tests/live"])]))
