"""Where recorded conversations are: in `$RECORDED_CONVERSATIONS`, else in `../shared/data` beside the checkout.

They are published conversations by others, some of them for non-commercial use only, so they are not part of this
repository. CONTRIBUTING.md says what they are, and what is skipped without them.
"""

import os
from pathlib import Path

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
FOLDER = Path(os.environ.get("RECORDED_CONVERSATIONS") or _BESIDE)
SHORT = FOLDER / "traces-dev.jsonl.gz"
LONG = FOLDER / "traces-dev-long.jsonl.gz"
"""Those of over 64k tokens."""
MISSING = "the recorded conversations are missing: see CONTRIBUTING.md"
