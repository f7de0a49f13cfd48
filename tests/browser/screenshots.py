"""`python -m tests.browser.screenshots`: writes the pictures of docs/guides/dashboard.md, of a talk that runs here."""

from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import launched
from tests.browser.test_dashboard import grown, open_session, opened, watched

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SIZE, WIDE = {"width": 1100, "height": 1000}, {"width": 1280, "height": 700}
PRICED = [{"match": "*", "prices": {"input": 2.5, "cached_input": 0.25, "output": 10.0}}]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright, watched(window=8_192, models=PRICED) as stage:
        browser = launched(playwright)
        grown(stage, *range(2, 60))
        with opened(browser, stage, viewport=SIZE) as page:
            page.screenshot(path=FOLDER / "dashboard-overview.png")
            open_session(page)
            page.screenshot(path=FOLDER / "dashboard-session.png")
        with opened(browser, stage, viewport=WIDE) as page:
            page.get_by_role("link", name="Requests", exact=True).click()
            page.get_by_role("heading", name="Requests", exact=True).wait_for()
            page.screenshot(path=FOLDER / "dashboard-requests.png")
        with opened(browser, stage, viewport=SIZE, color_scheme="dark") as page:
            open_session(page)
            page.get_by_text("replaced messages").first.click()
            page.evaluate("document.getElementById('transcript').scrollIntoView()")
            page.screenshot(path=FOLDER / "dashboard-transcript.png")
        browser.close()


if __name__ == "__main__":
    main()
