"""A real browser before the real proxy. Where there is no Chromium, these tests say so and are skipped.

Playwright keeps an event loop running while it is there, so it ends with the file: other tests run loops of their own.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Playwright, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
NAMES = ("chromium", "chromium-browser", "google-chrome")
AXE = Path(__file__).parents[1] / "clients/node/node_modules/axe-core/axe.min.js"


def launched(playwright: Playwright) -> Browser:
    """The system's Chromium, else that of Playwright; raises `Error` where there is neither."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    return playwright.chromium.launch(executable_path=path, args=FLAGS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        try:
            browser = launched(playwright)
        except Error as error:
            pytest.skip(f"the dashboard is NOT TESTED in a browser: {str(error).splitlines()[0]} (install chromium)")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which finds what makes a page hard to use."""
    if not AXE.exists():
        pytest.skip("the dashboard's accessibility is NOT TESTED: needs axe-core (npm ci in tests/clients/node)")
    return AXE.read_text("utf-8")
