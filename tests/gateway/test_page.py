"""The chat page in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, async_playwright, expect

from fakes.asgi import served, until
from fakes.tier import FakeTier, say
from tiergate.budget import TenantSpec
from tiergate.tiers import Finish, GenerationFailed, Text, Usage

from .conftest import Build, House

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
MARKUP = "<img src=x onerror=\"document.title='owned'\"> <b>bold</b> & </div>"

expect.set_options(timeout=30_000)  # a busy machine is no reason to fail

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@contextlib.asynccontextmanager
async def page_of(house: House) -> AsyncIterator[Page]:
    """The page, open and loaded; fails when the browser's console reports an error."""
    async with served(house.app, house.settings.server) as (url, _), async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await browser.new_page()
            complaints: list[str] = []
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            await page.goto(url)
            yield page
            assert [text for text in complaints if "Failed to load resource" not in text] == []
        finally:
            await browser.close()


async def send(page: Page, text: str) -> None:
    await page.get_by_label("Your message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def test_a_conversation(house: Build) -> None:
    home = house(FakeTier("fast", say(f"Hello {MARKUP}")))
    async with page_of(home) as page:
        assert await page.get_by_label("Model").locator("option").all_inner_texts() == [
            "auto", "fast", "fake-fast", "deep", "fake-deep",
        ]  # fmt: skip
        await send(page, f"Hi {MARKUP}")
        answer = page.locator("article.assistant").first
        await expect(answer.locator("> .text")).to_have_text(f"Hello {MARKUP}")
        await expect(answer).to_have_attribute("aria-busy", "false")
        foot = answer.locator("footer")
        await expect(foot).to_contain_text("fast")
        await expect(foot).to_contain_text(re.compile(r"because: .+ \(simple\)"))
        await expect(foot).to_contain_text("tokens")
        await expect(answer.locator("details")).to_be_hidden()

        await page.get_by_label("Model").select_option("deep")
        await page.get_by_label("Your message").fill("And 2+2?")
        await page.get_by_label("Your message").press("Enter")
        second = page.locator("article.assistant").nth(1)
        await expect(second.locator("> .text")).to_have_text("It is 4.")
        await expect(second.locator("details .text")).to_be_hidden()
        await second.locator("summary").click()
        await expect(second.locator("details .text")).to_have_text("Two and two.")
        await expect(second.locator("footer")).to_contain_text("3 of them thinking")

        assert await page.title() == "tiergate"
        assert await page.locator("article img, article b:not(footer b)").count() == 0
    assert [(message.role, message.content) for message in home.deep.requests[0].messages] == [
        ("user", f"Hi {MARKUP}"),
        ("assistant", f"Hello {MARKUP}"),
        ("user", "And 2+2?"),
    ]


MARKDOWN = """\
# Title #
Some **bold *and* slanted**, `a < b`, ``x`y``, 2 * 3 * 4, a\\*b\\*, snake_case_name
and [a link](https://example.com/a?b=c), [not one](javascript:alert(1)), ![x](https://example.com/x.png).
> quoted
> **still**

1. one
   - inner
   - `code`

   more
2. two
---
```html
<img src=x onerror="document.title='owned'">
  ``
```
* last
~~~
open & <b>unclosed</b>"""
RENDERED = """\
<h3>Title</h3>\
<p>Some <strong>bold <em>and</em> slanted</strong>, <code>a &lt; b</code>, <code>x`y</code>, 2 * 3 * 4, a*b*, \
snake_case_name
and <a href="https://example.com/a?b=c" target="_blank" rel="noopener noreferrer">a link</a>, \
[not one](javascript:alert(1)), \
!<a href="https://example.com/x.png" target="_blank" rel="noopener noreferrer">x</a>.</p>\
<blockquote><p>quoted
<strong>still</strong></p></blockquote>\
<ol start="1"><li><p>one</p><ul><li><p>inner</p></li><li><p><code>code</code></p></li></ul><p>more</p></li>\
<li><p>two</p></li></ol>\
<hr>\
<pre><code>&lt;img src=x onerror="document.title='owned'"&gt;
  ``</code></pre>\
<ul><li><p>last</p></li></ul>\
<pre><code>open &amp; &lt;b&gt;unclosed&lt;/b&gt;</code></pre>"""


async def test_markdown_is_shown_and_nothing_else_becomes_markup(house: Build) -> None:
    pieces = [Text(MARKDOWN[at : at + 7]) for at in range(0, len(MARKDOWN), 7)]
    home = house(FakeTier("fast", lambda *_: [*pieces, Finish(reason="stop", usage=Usage())]))
    async with page_of(home) as page:
        await send(page, "Hi")
        answer = page.locator("article.assistant").first
        await expect(answer).to_have_attribute("aria-busy", "false")
        shown = await answer.locator("> .text").evaluate("node => node.innerHTML.replaceAll(/ class=\"\"/g, '')")
        assert shown == RENDERED
        home.fast.script = say("Fine.")
        await send(page, "Go on")
        await expect(page.locator("article.assistant").nth(1).locator("> .text")).to_have_text("Fine.")
        assert await page.title() == "tiergate"
    assert home.fast.requests[1].messages[1].content == MARKDOWN, "the model gets back what it said"


PIECES = ("*", "**a", "`", "[", "[a](", "\\", "> ", "- ", "  ", "# ", "1. ", "```\n", "~", "- - ", "*a ", "_", "<a>")
ELEMENTS = {"p", "ul", "ol", "li", "pre", "code", "blockquote", "hr", "strong", "em", "a", "h3", "h4", "h5", "h6"}


async def test_answers_of_any_length_and_depth_are_shown(house: Build) -> None:
    async with page_of(house()) as page:
        names = await page.evaluate(
            """pieces => [...new Set(pieces.flatMap(piece => {
                const texts = [piece.repeat(20_000), (piece + "\\n").repeat(5_000), (piece + "x ").repeat(10_000)];
                return texts.flatMap(text => {
                    const place = document.createElement("div");
                    render(place, text.split("\\n"));
                    return [...place.querySelectorAll("*")].map(node => node.localName);
                });
            }))]""",
            PIECES,
        )
    assert {"p", "ul", "ol", "pre", "blockquote", "code", "h3"} <= set(names) <= ELEMENTS


async def test_answers_show_while_they_come_and_can_be_stopped(house: Build) -> None:
    home = house(FakeTier("fast", lambda *_: [Text("one"), Text(" two"), asyncio.Event()]))
    async with page_of(home) as page:
        await send(page, "Hi")
        answer = page.locator("article.assistant")
        await expect(answer.locator("> .text")).to_have_text("one two")
        await expect(answer).to_have_attribute("aria-busy", "true")
        await page.get_by_role("button", name="Stop").click()
        await expect(answer.locator("footer")).to_contain_text("stopped")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await until(lambda: not home.fast.running)
        home.fast.script = say("Fine.")
        await send(page, "Go on")
        await expect(page.locator("article.assistant").nth(1).locator("> .text")).to_have_text("Fine.")
        assert [message.content for message in home.fast.requests[1].messages] == ["Hi", "one two", "Go on"]
        await page.get_by_role("button", name="New chat").click()
        await expect(page.locator("article")).to_have_count(0)
        await send(page, "Anew")
        await expect(page.locator("article.assistant > .text")).to_have_text("Fine.")
        assert [message.content for message in home.fast.requests[2].messages] == ["Anew"]


async def test_errors_are_shown_and_the_question_is_kept(house: Build) -> None:
    end = Finish(reason="length", usage=Usage())
    home = house(FakeTier("fast", lambda *_: [GenerationFailed("x")]))
    async with page_of(home) as page:
        await send(page, "Hi")
        await expect(page.get_by_role("alert")).to_have_text("The model failed while answering.")
        await expect(page.get_by_label("Your message")).to_have_value("Hi")
        home.fast.script = lambda *_: [Text("part"), GenerationFailed("x")]
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert").nth(1)).to_have_text("The model failed while answering.")
        await expect(page.locator("article.assistant > .text").nth(1)).to_have_text("part")
        home.fast.script = lambda *_: [Text("cut"), end]
        await send(page, "More")
        await expect(page.locator("article.assistant footer").nth(2)).to_contain_text("cut at the limit")
        assert [message.content for message in home.fast.requests[-1].messages] == ["Hi", "part", "More"]


async def test_a_key_is_asked_for_where_one_is_needed(house: Build) -> None:
    home = house(tenants={"a": TenantSpec(keys=("sk-a",))})
    async with page_of(home) as page:
        await page.get_by_label("API key").fill("sk-a")
        await page.get_by_label("API key").blur()
        await expect(page.get_by_label("Model").locator("option")).to_have_count(5)
        await send(page, "Hi")
        await expect(page.locator("article.assistant > .text")).to_have_text("Hello there, friend.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_contrast(house: Build, scheme: str) -> None:
    """WCAG 2.1, 1.4.3: a ratio of at least 4.5 for all text."""
    async with page_of(house(FakeTier("fast", say("`code` [a link](https://example.com) **bold**")))) as page:
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await send(page, "Hi")
        await expect(page.locator("article.assistant")).to_have_attribute("aria-busy", "false")
        pairs = await page.evaluate(
            """() => [...document.querySelectorAll(
                "h1, label, select, button, .text, .text *, footer, b, .hint"
            )].map(node => {
                let ground = node;
                while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
                return [getComputedStyle(node).color, getComputedStyle(ground).backgroundColor];
            })"""
        )
    assert pairs
    for ink, ground in pairs:
        bright, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


def luminance(colour: str) -> float:
    """Relative luminance of an `rgb(r, g, b)`, WCAG 2.1."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
