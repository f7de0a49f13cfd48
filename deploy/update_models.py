"""Rebuild config/models.toml from the tables that packages publish: `condenser models update` for a release.

    python deploy/update_models.py [--into FILE] [REQUIREMENT ...]

Run at a release, never by the program. Each requirement is a pinned version of litellm or genai-prices; the first one
that knows a model wins, so an older version listed last contributes only models that have been retired since (other
gateways still serve them). The packages are downloaded as wheels and not installed; LiteLLM's is read as an archive,
and of that of genai-prices the data is imported. Exit status 1 when a download fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from proxy.commands.models import MEMBER, Table, genai_rows, known, render

TARGET = Path(__file__).resolve().parent.parent / "config" / "models.toml"
PINS = ("litellm==1.110.2", "litellm==1.83.0", "genai-prices==0.2.3")
DOWNLOAD_SECONDS = 600


def _row(provider: str, window: int, output: int, *costs: float, **more: Any) -> Mapping[str, Any]:
    """A row for a model; `costs` are of a million tokens read anew and of a reply, then from and into the cache."""
    names = "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"
    prices = zip((*names, "cache_creation_input_token_cost"), costs, strict=False)
    limits = {"max_input_tokens": window, "max_output_tokens": output}
    return {
        "litellm_provider": provider,
        "mode": "chat",
        **limits,
        **{name: cost / 1e6 for name, cost in prices},
        **more,
    }


_CARBON = {"2026-12-01": _row("gemini", 1_048_576, 0, 4, 20)}
NEW: Table = {
    "gpt-6.2-sol": _row("openai", 1_050_000, 128_000, 2, 10, 0.1, 2.5, input_cost_per_token_above_272k_tokens=4e-6,
                        output_cost_per_token_above_272k_tokens=15e-6),
    "gpt-6.2-astra": _row("openai", 1_050_000, 128_000, 8, 40, 0.4, 10, input_cost_per_token_above_272k_tokens=16e-6,
                          output_cost_per_token_above_272k_tokens=60e-6),
    "gemini-4-carbon": _row("gemini", 1_048_576, 0, 2, 10, later=_CARBON),
    "gemini-4-hydrogen": _row("gemini", 1_048_576, 0, 1.5, 7.5, 0.075),
    "gemini-4-neon": _row("gemini", 1_048_576, 0, 3, 15),
}  # fmt: skip
"""Models that no package has yet, by their vendors' price lists of 10 to 18 November 2026."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rebuild the bundled table of models.")
    parser.add_argument("--into", type=Path, default=TARGET)
    parser.add_argument("requirements", nargs="*", default=PINS)
    options, today = parser.parse_args(argv), datetime.now(UTC).date()
    try:
        tables = {requirement: download(requirement, today) for requirement in options.requirements}
    except (OSError, subprocess.SubprocessError, KeyError, zipfile.BadZipFile) as error:
        print(f"update_models: {error}", file=sys.stderr)
        return 1
    first = [table for requirement, table in tables.items() if requirement.startswith("litellm")]
    found = known([*first, NEW], [table for table in tables.values() if table not in first])
    sources = [*options.requirements, "price lists of vendors"]
    options.into.write_text(render(found._replace(sources=sources), today))
    print(f"update_models: {len(found.models)} models, {len(found.prices)} prices into {options.into}")
    return 0


def download(requirement: str, today: date) -> Table:
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--only-binary", ":all:", "--dest", scratch, requirement),
            ],
            check=True,
            timeout=DOWNLOAD_SECONDS,
        )
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            if requirement.startswith("litellm"):
                table: Table = json.loads(archive.read(f"litellm/{MEMBER}"))
                return table
            archive.extractall(scratch)
        sys.path.insert(0, scratch)
        try:
            return genai_rows(import_module("genai_prices.data").providers, today)
        finally:
            sys.path.remove(scratch)


if __name__ == "__main__":
    sys.exit(main())
