from collections.abc import Callable

import pytest
import tiktoken

from proxy.tokens import ranks


@pytest.fixture(scope="session")
def encodings() -> Callable[[str], tiktoken.Encoding]:
    """Our encodings by name. The rank files are package data that `make setup` fetches."""
    try:
        loaded = {name: ranks.load(name) for name in ranks.SPECS}
    except ranks.RanksUnavailable as error:
        pytest.skip(f"NO RANK FILES, token counts are untested: {error}")
    return loaded.__getitem__
