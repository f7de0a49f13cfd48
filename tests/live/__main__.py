"""`make live` runs the tests before a real model server; `make live ARGS=turns` measures what turns cost there."""

import sys

import pytest

from tests.live import turns
from tests.live.llama import IS_VLLM

if __name__ == "__main__":
    if sys.argv[1:2] == ["turns"]:
        if IS_VLLM:
            sys.exit("ARGS=turns measures llama.cpp's server: leave SERVER out")
        turns.run(sys.argv[2:])
        sys.exit()
    sys.exit(pytest.main(["-m", "live", "-p", "no:cacheprovider", *(sys.argv[1:] or ["tests/live"])]))
