"""The source documents' algorithms, written down a second time, against the strategies.

`ports.py` follows the documents, with the readings that `docs/internals/faithful.md` lists. It uses nothing of
`strategies/`. Each test compares the two on generated cases; the seed is an argument, so that a failure comes again.
"""

from hypothesis import settings

SEEDS = range(4)


def examples(number: int) -> range:
    """So many cases for each seed, and twelve times as many under the torture profile."""
    profile = settings.default
    return range(number * (profile.max_examples if profile else 25) // 25)
