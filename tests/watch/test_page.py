"""The page in a real browser: it shows the query as it runs, finds keys, steers, and says when a query has died."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import weir
from support import posts, two_counts
from weir.testing import start
from weir.watch.page_server import PageServer
from weir_evaluation.bench.chaos import outside
from weir_evaluation.bench.chaos.draw import draw
from weir_evaluation.bench.pages import look_at
from weir_evaluation.browser import DRAWN, browser, chromium

pytestmark = pytest.mark.skipif(
    chromium() is None,
    reason="no Chromium on this machine, so nothing is tested in it: apt-get install chromium",
)
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def chrome():
    with browser() as opened:
        yield opened


@pytest.fixture
def tab(chrome):
    """A new tab that fails the test if anything goes wrong in it, or if anything is loaded from elsewhere."""
    page, wrong = chrome.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda request: wrong.append(request.url) if "//127.0.0.1:" not in request.url else None
    )
    yield page
    page.close()
    assert wrong == []


@pytest.fixture
def live(checkpoint):
    """A query with homes that are learnt, and its page, which may steer it."""
    query = start(two_counts(), checkpoint, servers=2, routing=weir.Locality(period=1))
    with query, PageServer(checkpoint, port=0, control=True) as server:
        yield query, server


def shows(tab, selector, text):
    """Wait until an element shows a text."""
    tab.locator(selector).filter(has_text=text).first.wait_for(timeout=20_000)


def percent(share):
    """Return a share as the page shows it: halves are rounded up."""
    return f"{int(100 * share + 0.5)} %"


def test_the_page_follows_a_query(live, tab):
    query, server = live
    tab.goto(server.url)
    tab.wait_for_selector(DRAWN)
    assert "token" not in tab.url
    shows(tab, "#verdict", "No batch has been committed yet.")
    query.feed(posts(400, 0))
    shows(tab, "#status", "running · batch 0")
    shows(tab, "#tile-rows", "400 in batch 0")
    shows(tab, "#tile-locality", percent(query.progress.locality))
    shows(tab, '[data-node="places"]', f"{query.progress.state_keys['places']} keys")
    assert tab.locator("#chart-locality .values").inner_text().endswith(percent(query.progress.locality))

    query.reconfigure(wait=True)
    query.feed(posts(500, 1))  # the page is not loaded again
    shows(tab, "#tile-rows", "500 in batch 1")
    shows(tab, "#tile-locality", percent(query.progress.locality))
    shows(tab, "#decided", f"Reconfigured: {query.progress.moved_keys:,} keys")
    shows(tab, "#shown", "2 batches")

    query.scale_out(1)
    query.feed(posts(600, 2))
    shows(tab, "#decided", "Scaled out: 2 → 3 servers")
    shows(tab, "#tile-busy", "3 servers")
    shows(tab, "#chart-count .values", "servers 3")
    assert tab.locator("#grid thead th[scope=col]").count() == 3

    tab.fill("#key-text", "place 1")
    tab.press("#key-text", "Enter")
    home = query.routing_table("places").lookup("place 1")
    shows(tab, ".home", f"places: “place 1” lives on server {home}")
    count = next(row["count"] for row in query.state("places").to_pylist() if row["place"] == "place 1")
    shows(tab, ".home .state", str(count))

    query.stop()
    shows(tab, "#status", "stopped · batch 2")


def test_steering_shows_first_what_it_would_do(live, tab):
    query, server = live
    query.feed(posts(400, 0))
    tab.goto(server.url)
    tab.wait_for_selector(DRAWN)
    tab.click("#scale-out")
    shows(tab, "#steer-answer", "Would go from 2 to 3 servers. Nothing has changed yet.")
    query.feed(posts(100, 1))
    assert query.topology.servers == 2
    tab.click("#do-it")
    for seed in range(100):
        query.feed(posts(100, seed))
        tab.wait_for_timeout(50)  # what the page does happens while it is waited for
        if "Done: from 2 to 3" in tab.locator("#steer-answer").inner_text():
            break
    shows(tab, "#steer-answer", "Done: from 2 to 3 servers")
    assert query.topology.servers == 3


def test_without_the_token_there_is_nothing_to_see_or_to_do(chrome, live):
    query, server = live
    chrome.clear_cookies()
    page = chrome.new_page()
    assert page.goto(server.url.partition("?")[0]).status == 401
    asked = (
        """async () => (await fetch('/api/steer', {method: 'POST', body: '{"operation": "out"}'})).status"""
    )
    assert page.evaluate(asked) == 401
    page.goto(server.url)
    page.wait_for_selector(DRAWN)
    chrome.clear_cookies()  # the page of somebody whose token is gone
    assert page.evaluate(asked) == 401
    page.close()
    assert query._driver.storage.names("requests") == []


def test_a_killed_query_is_shown_as_stopped(tab, checkpoint):
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from support import posts, two_counts\nfrom weir.testing import start\n"
        "query = start(two_counts(), sys.argv[1], servers=2)\nquery.feed(posts(50, 0))\n"
        "print('fed', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program, checkpoint, str(TESTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "fed\n"
        with PageServer(checkpoint, port=0) as server:
            tab.goto(server.url)
            shows(tab, "#status", "running · batch 0")
            assert tab.locator("#steer").is_hidden()  # it may only look
            child.kill()
            shows(tab, "#status", "stopped · batch 0")
            shows(tab, "#verdict", "The query has stopped: it was killed.")
            tab.close()


def test_it_can_be_read_on_small_screens_in_the_dark_and_by_keyboard(live, tab):
    query, server = live
    for seed in range(4):
        query.feed(posts(100, seed))
    for width, scheme in ((390, "dark"), (1280, "light")):
        tab.set_viewport_size({"width": width, "height": 800})
        tab.emulate_media(color_scheme=scheme)
        tab.goto(server.url)
        tab.wait_for_selector(DRAWN)
        assert tab.evaluate("() => document.documentElement.scrollWidth") == width
        assert {what: ratio for what, ratio in tab.evaluate(CONTRAST).items() if ratio < 4.5} == {}
    chart = tab.locator("#chart-rows .plot")
    chart.focus()
    tab.keyboard.press("Home")
    shows(tab, "#chart-locality .values", "batch 0")  # all charts follow
    tab.keyboard.press("ArrowRight")
    shows(tab, "#chart-locality .values", "batch 1")
    tab.keyboard.press("+")
    tab.locator("#shown").filter(has_text="4 batches").wait_for(state="detached")
    chart.focus()
    tab.keyboard.press("Escape")
    shows(tab, "#shown", "4 batches")
    tab.locator('[data-node="places"]').focus()
    assert tab.evaluate("() => document.activeElement.getAttribute('aria-label')").startswith(
        "places, Count by place"
    )


# contrast of the text of every kind of element with what is behind it, as WCAG 2 computes it
CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255)
    .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const element of document.querySelectorAll('main *, header *, footer *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const svg = element.ownerSVGElement;
    const style = getComputedStyle(element);
    const front = light(parse(svg ? style.fill : style.color)), back = light(behind(svg ? svg.parentElement : element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    const name = `${element.tagName} ${element.getAttribute('class') ?? ''} ${element.id}`;
    found[name] = Math.min(found[name] ?? 99, Math.round(ratio * 100) / 100);
  }
  return found;
}"""


@pytest.mark.parametrize("seed", [1, 7, 13])
def test_the_page_of_any_application_is_drawn(chrome, seed):
    """`weir bench pages` opens hundreds of them."""
    with outside.reachable():
        assert look_at(chrome, draw(random.Random(seed)), seed) == []


def test_rows_that_come_too_late_have_a_sink_of_their_own_in_the_flow(tab, checkpoint):
    source = weir.source("place string, at timestamp").event_time("at")
    app = source.filter(bool, on_error="divert").dead_letter_sink(lambda table, batch: None)
    app = app.count("place", window=weir.tumbling("at", "1 minute"), name="w")
    with start(app, checkpoint, servers=2) as query, PageServer(checkpoint, port=0) as server:
        query.feed([{"place": "a", "at": datetime(2024, 1, 1)}])
        tab.goto(server.url)
        tab.wait_for_selector(DRAWN)
        shows(tab, "#graph .sink", "late rows")
        assert "dead letters" in tab.locator("#graph").inner_text()
        query.finish()
        query.stop()
        shows(tab, "#verdict", "The query has finished.")


def test_a_part_of_the_page_that_fails_says_so_and_the_others_are_drawn(chrome, live):
    query, server = live
    query.feed(posts(50, 0))
    page = chrome.new_page()
    page.route("**/static/flow.js", lambda route: route.fulfill(body=BROKEN, content_type="text/javascript"))
    page.goto(server.url)
    page.wait_for_selector(DRAWN)
    shows(page, "#flow .broken", "could not be drawn (no flow today)")
    assert page.locator("#grid *").count()
    page.close()


BROKEN = "export const legend = () => {}; export const draw = () => { throw new Error('no flow today'); };"
