"""Draws all pictures; they differ from run to run only where the program does."""

import asyncio
import json
from pathlib import Path

from bench.pictures.tokens import tokens_per_request
from proxy.commands.demo import WINDOW, load, played
from strategies import DEFAULT

FOLDER = Path(__file__).parents[2] / "docs" / "images"


def main() -> None:
    run = asyncio.run(played(load(), DEFAULT, WINDOW))
    (FOLDER / "tokens-per-request.svg").write_text(tokens_per_request(json.loads(json.dumps(run.document()))), "utf-8")


if __name__ == "__main__":
    main()
