"""The dashboard in a real browser: what a person sees of a running conversation, and what the buttons do to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.http.test_dropping import FIRST, told
from tests.http.test_memory_injection import QUESTION, diary, ending
from tests.support.stage import Message, Stage, chat, controls, proxy_with_upstream

TOKEN = "operator"
HOSTILE = '<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1"> \u202e'


class Seen:
    """What a page did that it should not have done."""

    def __init__(self, page: Page, own: str) -> None:
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(own) else self.foreign.append(request.url))


@contextmanager
def opened(browser: Browser, stage: Stage, **context: Any) -> Iterator[Page]:
    """A page of somebody who has signed in; fails the test for errors on the console and for foreign requests."""
    page = browser.new_context(**context).new_page()
    seen = Seen(page, stage.proxy.url)
    page.goto(f"{stage.proxy.url}/_condenser/")
    seen.errors.clear()  # the form to sign in is a 401, which the console counts as an error
    page.get_by_label("Admin token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    yield page
    page.context.close()
    assert (seen.errors, seen.foreign) == ([], [])


@contextmanager
def watched(**settings: Any) -> Iterator[Stage]:
    with proxy_with_upstream(
        **{"strategy": "mask+extract", "window": 4_096, "admin": {"token": TOKEN}, **settings}
    ) as stage:
        yield stage


def grown(stage: Stage, *rounds: int, first: str = "") -> None:
    for number in rounds:
        messages: list[Message] = chat(number)
        if first:
            messages[1] = {**messages[1], "content": f"{first} {messages[1]['content']}"}
        stage.ask(messages, controls(session="garden"))


def open_session(page: Page, tab: str = "Now") -> None:
    page.get_by_role("link", name="Sessions", exact=True).click()
    page.get_by_role("link", name="garden", exact=True).click()
    expect(page.get_by_role("heading", name="Session garden")).to_be_visible()
    open_tab(page, tab)


def open_tab(page: Page, name: str) -> None:
    tabs = page.get_by_role("navigation", name="Session", exact=True)
    tabs.get_by_role("link", name=name, exact=True).click()
    expect(tabs.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")


def test_a_wrong_token_shows_nothing(browser: Browser) -> None:
    with watched() as stage:
        page = browser.new_context().new_page()
        page.goto(f"{stage.proxy.url}/_condenser/")
        page.get_by_label("Admin token").fill("guess")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("neither the admin token")
        page.context.close()


def test_the_first_page_says_what_was_condensed_while_a_conversation_runs(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        expect(page.get_by_text("No session is stored yet")).to_be_visible()
        grown(stage, 10, 20, 30)
        expect(page.get_by_role("link", name="garden")).to_be_visible()
        assert page.evaluate("performance.getEntriesByType('navigation')[0].type") == "navigate"


def test_a_button_takes_a_condensation_back(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        grown(stage, 10, 20)
        open_session(page)
        expect(page.get_by_role("group", name="Prompt size of each request")).to_be_visible()
        open_tab(page, "Condensations")
        expect(page.get_by_text("because the prompt had reached the trigger").first).to_be_visible()
        condensed = len(stage.last_view)
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Revert condensation").first.click()
        expect(page.get_by_text("The condensation is taken back")).to_be_visible()
        expect(page.get_by_text("reverted").first).to_be_in_viewport()
        stage.ask(chat(20), controls(session="garden", window=32_768))
        assert len(stage.last_view) > condensed
        page.get_by_role("button", name="Undo revert").first.click()
        expect(page.get_by_text("The revert is taken back")).to_be_visible()
        stage.ask(chat(20), controls(session="garden"))
        assert len(stage.last_view) == condensed


def test_the_record_in_the_view_is_reverted_where_it_stands(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        grown(stage, 10, 20)
        open_session(page)
        number = (page.locator(".span .note").first.text_content() or "").partition("stands for ")[2].split()[0]
        assert f"The {number} earlier messages" in (page.locator("pre.record").first.text_content() or "")
        page.once("dialog", lambda dialog: dialog.accept())
        page.locator(".span").get_by_role("button", name="Revert condensation").click()
        expect(page.get_by_role("button", name="Undo revert")).to_be_visible()


def test_a_line_of_the_ledger_is_dropped(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        stage.ask(told(20), controls(session="garden"))
        assert FIRST in str(stage.last_view)
        open_session(page, "Memory")
        page.get_by_role("button", name=f"Drop {FIRST}").click()
        expect(page.get_by_text("leaves with the next condensation", exact=True)).to_be_visible()
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name=f"Drop now {FIRST}").click()
        expect(page.locator("s", has_text=FIRST)).to_be_in_viewport()
        expect(page.get_by_text("dropped", exact=True)).to_be_visible()
        for rounds in (20, 60):
            stage.ask(told(rounds), controls(session="garden"))
            assert FIRST not in str(stage.last_view)
        open_session(page)
        expect(page.locator("pre.record").first).not_to_contain_text(FIRST)


def test_requests_say_what_was_done_and_are_found_by_it(browser: Browser) -> None:
    with (
        watched(models=[{"match": "*", "prices": {"input": 2.5, "output": 10.0}}]) as stage,
        opened(browser, stage) as page,
    ):
        grown(stage, 10, 20)
        stage.ask(chat(2), controls(session="shed"))
        page.get_by_role("link", name="Requests", exact=True).click()
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.first).to_contain_text("Plan my garden. Never water at noon.")
        expect(rows.first).to_contain_text("unchanged")
        page.get_by_label("Done", exact=True).select_option("newly condensed")
        page.get_by_label("Model", exact=True).select_option(stage.model)
        page.get_by_role("button", name="Show", exact=True).click()
        expect(rows.first).to_contain_text("newly condensed")
        expect(page.locator("tbody .did-condensed")).to_have_count(rows.count())
        cells = rows.first.locator("td[data-name^=Cost], td[data-name^=First]").all_text_contents()
        assert all(float(each) > 0 for each in cells)
        rows.first.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Session garden")).to_be_visible()
        expect(page.locator("tr:target")).to_be_in_viewport()


def test_the_table_of_requests_fits_a_window_of_1280_pixels(browser: Browser) -> None:
    prices = [{"match": "*", "prices": {"input": 2.5, "output": 10.0}}]
    with watched(models=prices) as stage, opened(browser, stage, viewport={"width": 1280, "height": 800}) as page:
        stage.model = "claude-sonnet-4-5-20250929"
        grown(stage, 20, 40, first="A title that is longer than its column.")
        page.get_by_role("link", name="Requests", exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(2)
        assert page.evaluate("[...document.querySelectorAll('.scroll')].every((x) => x.scrollWidth <= x.clientWidth)")


def test_a_pinned_message_goes_on_word_for_word(browser: Browser) -> None:
    with watched(strategy="recent", memory={"default": "off"}) as stage, opened(browser, stage) as page:
        grown(stage, 4)
        open_session(page)
        page.get_by_role("button", name="Pin message 3").click()
        expect(page.get_by_text("Message 3 is pinned")).to_be_visible()
        expect(page.get_by_role("button", name="Unpin message 3")).to_be_visible()
        grown(stage, 30)
        said = [message["content"] for message in stage.last_view]
        # Messages are counted from the first that is not the system's.
        assert chat(4)[4]["content"] in said
        assert chat(30)[6]["content"] not in said


def test_a_memory_card_can_be_written_changed_and_forgotten(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        grown(stage, 4)
        open_session(page, "Memory")
        page.get_by_label("What to remember").fill("The pond is frozen.")
        page.get_by_role("button", name="Remember").click()
        page.get_by_text("Edit").click()
        page.get_by_label("Content of card").fill("The pond has thawed.")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".cards span", has_text="The pond has thawed.")).to_be_visible()
        expect(page.get_by_text("The pond is frozen.")).to_have_count(0)
        page.get_by_role("button", name="Drop: forget card").click()
        expect(page.get_by_text("The pond has thawed.")).to_have_count(0)


def test_a_session_shows_what_memory_has_put_in(browser: Browser) -> None:
    fact = "The greenhouse key hangs behind the blue barrel."
    with watched(strategy="recent") as stage, opened(browser, stage) as page:
        messages = chat(60)
        answer = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        messages[answer] = {**messages[answer], "content": fact}
        stage.ask(messages, controls(session="garden"))
        assert fact not in str(stage.last_view)
        asks: list[Message] = [*messages, {"role": "assistant", "content": "Yes."}]
        asks.append({"role": "user", "content": "Where does the greenhouse key hang?"})
        stage.ask(asks, [*controls(session="garden"), ("X-Condenser-Memory", "inject")])
        assert fact in stage.last_view[-2]["content"]
        open_session(page, "Memory")
        page.get_by_text(": memory,").click()
        expect(page.locator("#i-1 pre")).to_contain_text(fact)


def test_what_users_and_models_wrote_runs_nothing(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        grown(stage, 10, 20, first=HOSTILE)
        open_session(page)
        expect(page.get_by_text("<script>window.pwned").first).to_be_attached()
        assert "\u202e" not in page.content()
        assert page.evaluate("window.pwned") is None


PHONE = {"width": 390, "height": 800}
LINKS = ("Condenser", "Requests", "Sessions", "garden", "Condensations", "tab=requests", "Memory")
"""The link that leads to each page from the one before."""


@pytest.mark.parametrize("look", [{"color_scheme": "dark"}, {"viewport": PHONE, "color_scheme": "light"}])
def test_no_page_has_a_serious_fault_of_accessibility(browser: Browser, axe: str, look: dict[str, Any]) -> None:
    with watched(strategy="half-window") as stage:
        stage.ask(diary(6), controls(session="garden"))
        stage.ask(diary(12), controls(session="garden", force="true"))
        stage.ask(ending(diary(12), QUESTION), controls(session="garden", memory="inject"))
        with opened(browser, stage, **look) as page:
            for link in LINKS:
                by_address = page.locator(f"a[href*='{link}']")
                (by_address if "=" in link else page.get_by_role("link", name=link, exact=True)).first.click()
                page.wait_for_load_state()
                # What a condensation wrote and replaced comes once it is unfolded.
                page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
                expect(page.locator("details[data-load] a:not([data-unfold])")).to_have_count(0)
                page.evaluate(axe)
                violations = page.evaluate("axe.run().then((result) => result.violations)")
                serious = [each for each in violations if each["impact"] in {"serious", "critical"}]
                assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            expect(page.get_by_role("heading", name="Injected memories")).to_be_visible()


def test_a_long_session_is_a_page_under_a_megabyte(browser: Browser) -> None:
    with watched(window=1_000_000) as stage, opened(browser, stage) as page:
        grown(stage, 1_000)
        open_session(page)
        assert len(page.content()) < 1_000_000
        page.get_by_role("link", name="Earlier").click()
        expect(page.get_by_role("button", name="Pin message 1700", exact=True)).to_be_visible()


def test_a_side_request_hides_no_conversation(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        grown(stage, 10, 20)
        stage.ask([{"role": "user", "content": "hi"}], controls(session="garden"))
        open_session(page)
        expect(page.get_by_role("link", name="main")).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("group", name="Prompt size of each request")).to_be_visible()


def test_a_long_message_unfolds_in_its_place(browser: Browser) -> None:
    end = "and here it ends."
    with watched() as stage, opened(browser, stage) as page:
        grown(stage, 4, first="word " * 200 + end)
        open_session(page)
        expect(page.get_by_text(end)).to_have_count(0)
        page.get_by_text("more characters").first.click()
        expect(page.get_by_text(end)).to_be_visible()


def test_what_was_unfolded_stays_so_while_the_conversation_goes_on(browser: Browser) -> None:
    with watched() as stage, opened(browser, stage) as page:
        grown(stage, 10, 20)
        open_session(page, "Condensations")
        first = page.locator("article", has_text="at request 1")
        first.get_by_text("Replacement text and replaced messages").click()
        expect(first.get_by_role("heading", name="Replacement text", exact=True)).to_be_visible()
        folded = first.get_by_role("link", name="more characters")
        count = folded.count()
        folded.first.click()
        expect(folded).to_have_count(count - 1)
        count_of_cards = page.locator("article").count()
        grown(stage, 21, 40)
        expect(page.locator("article")).not_to_have_count(count_of_cards)
        expect(first.get_by_role("heading", name="Replaced messages")).to_be_visible()
        expect(folded).to_have_count(count - 1)
