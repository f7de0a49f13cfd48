"""The last advice where condensing is cheapest that would save enough to be told, for people to read.

`trigger` in tokens, the share that it `saves`, and the `mode`; `with_economy` makes it (`completing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.condensing.traits.trait import Trait

TRAIT = Trait[Mapping[str, Any]]("economy", dict)
