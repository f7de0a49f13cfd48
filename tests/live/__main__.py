"""`make live` runs the tests before a real model server; arguments are pytest's."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-m", "live", "-p", "no:cacheprovider", *(sys.argv[1:] or ["tests/live"])]))
