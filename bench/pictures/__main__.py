"""Draws all pictures. Those of the dashboard and the terminal are of a run, and so differ each time in ids."""

import asyncio
from pathlib import Path

from bench.pictures import drawn
from bench.pictures.terminal import SHOWN, recorded, terminal
from proxy.commands.demo import WINDOW, load, played
from strategies import DEFAULT
from tests.browser import screenshots

FOLDER = Path(__file__).parents[2] / "docs" / "images"


def main() -> None:
    run = asyncio.run(played(load(), DEFAULT, WINDOW))
    for name, picture in {**drawn(run), "wrap.svg": terminal(SHOWN, recorded())}.items():
        (FOLDER / name).write_text(picture, "utf-8")
    screenshots.main()


if __name__ == "__main__":
    main()
