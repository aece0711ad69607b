"""The site in Chromium: pages fit, and what one looks for is found.

Needs the extra `docs`, and a `chromium` on the PATH.
"""

import functools
import http.server
import io
import shutil
import threading

import PIL.Image
import pytest

from tests.site_questions import QUESTIONS, SEARCHES
from tests.test_docs_site import build

pytestmark = pytest.mark.long

WIDE_TABLE = "about/exactness.html"
SIZES = {"desktop": (1280, 800), "phone": (400, 800)}
# What is wrong with a page, as the browser has laid it out. Tables may only be
# wider than their box where shadows show it.
_LOOK = """() => {
  const page = document.documentElement;
  const text = (one) => one.textContent.trim().slice(0, 60);
  return {
    overflow: page.scrollWidth - page.clientWidth,
    images: [...document.images]
      .filter((one) => one.naturalWidth === 0 || !one.alt)
      .map((one) => one.src),
    tables: [...document.querySelectorAll("article table")]
      .filter((one) => {
        const box = one.closest(".md-typeset__scrollwrap") ?? one;
        return box.scrollWidth > box.clientWidth + 1
          && !getComputedStyle(box).backgroundAttachment.includes("local");
      })
      .map(text),
  };
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The built site, from a server, as browsers search no files."""
    folder = build(tmp_path_factory.mktemp("site"))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs Chromium")
    with api.sync_playwright() as browsers:
        opened = browsers.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        yield opened
        opened.close()


@pytest.fixture
def page(address, browser):
    """A page that may load nothing from elsewhere."""
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    elsewhere = []
    opened.on(
        "request",
        lambda one: (
            one.url.startswith((address[0], "data:", "blob:"))
            or elsewhere.append(one.url)
        ),
    )
    yield opened
    opened.close()
    assert not elsewhere


@pytest.mark.parametrize("size", SIZES)
def test_pages_fit_and_their_images_load(address, page, size):
    where, folder = address
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    wrong = {}
    for path in sorted(folder.rglob("*.html")):
        name = str(path.relative_to(folder))
        page.goto(f"{where}/{name}", wait_until="load")
        found = page.evaluate(_LOOK)
        if any(found.values()):
            wrong[name] = found
    assert not wrong


def test_a_table_that_goes_on_shows_it(address, page):
    """Its right edge is darker until one has scrolled to the end."""
    where, _ = address
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{where}/{WIDE_TABLE}")
    box = page.locator(".md-typeset__scrollwrap").first
    before = right_edge(box)
    box.evaluate("one => { one.scrollLeft = one.scrollWidth }")
    page.wait_for_timeout(200)
    assert before < right_edge(box) - 5


def right_edge(box):
    """How bright the last pixels of an element are, from 0 to 255."""
    image = PIL.Image.open(io.BytesIO(box.screenshot())).convert("L")
    strip = image.crop((image.width - 6, 0, image.width, image.height))
    return sum(strip.tobytes()) / len(strip.tobytes())


def test_answers_are_two_clicks_from_the_front_page(address, page):
    where, _ = address
    front = f"{where}/index.html"
    wrong = []
    for question, name in QUESTIONS.items():
        page.goto(front)
        target, first = f"{where}/{name}.html", visible_links(page)
        for link in [] if target in first else first:
            page.goto(front)
            click(page, link)
            if target in visible_links(page):
                break
        if target in visible_links(page):
            click(page, target)
            assert without_anchor(page.url) == target
        else:
            wrong.append(question)
    assert not wrong


def visible_links(page):
    """The pages of the site that can be clicked on, from the top down."""
    links = page.evaluate(
        "() => [...document.links].filter((one) => one.checkVisibility())"
        ".map((one) => one.href)"
    )
    pages = [without_anchor(one) for one in links if one.startswith("http")]
    return [*dict.fromkeys(pages)]


def without_anchor(address):
    return address.partition("#")[0]


def click(page, address):
    """Clicks on the first visible link to a page."""
    place = page.evaluate(
        "(to) => [...document.querySelectorAll('a')].findIndex((one) => "
        "one.checkVisibility() && one.href.split('#')[0] === to)",
        address,
    )
    assert place >= 0, f"no visible link leads to {address}"
    page.locator("a").nth(place).click()
    page.wait_for_load_state()


def test_a_search_shows_the_right_page_first(address, page):
    where, _ = address
    page.goto(f"{where}/index.html")
    box = page.locator(".md-search__input")
    box.click()
    # Nothing is found before the index is loaded.
    wait_for_results(page, "text.includes('Type to start')")
    wrong = {}
    for words, name in SEARCHES.items():
        box.fill("")
        wait_for_results(page, "text.includes('Type to start')")
        box.press_sequentially(words)
        wait_for_results(page, "!text.includes('Type to start')")
        # It searches while one types.
        page.wait_for_timeout(300)
        found = page.locator(".md-search-result__link")
        first = found.first.get_attribute("href") if found.count() else ""
        first = first.removeprefix(f"{where}/").partition("?")[0]
        if first != f"{name}.html":
            wrong[words] = first
    assert not wrong


def wait_for_results(page, condition):
    """Waits until what is said above the results is as it should be."""
    page.wait_for_function(
        "() => { const text = document.querySelector("
        f"'.md-search-result__meta').textContent; return {condition}; }}"
    )
