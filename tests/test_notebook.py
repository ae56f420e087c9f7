"""What notebooks show: streams as drawings, queries and progress as tables, in a real kernel."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import nbformat
import pytest
from nbclient import NotebookClient

import weir
from weir.flow import parts_of
from weir.graph.drawing import HEIGHT, WIDTH, svg
from weir.notebook import table
from weir.testing import start

CELLS = [
    "import weir, weir.testing",
    "posts = weir.source('place string, topic string, n long', 'posts')\nposts",
    "topics = posts.count('place', name='places', emit='rows').sink(print).count('topic', name='topics')\ntopics",
    "weir.Application(topics, posts.aggregate('place', total='sum(n)', name='totals'))",
    "query = weir.testing.start(topics, servers=3, watch=True)\nquery",
    "query.feed([{'place': 'FR', 'topic': 'x', 'n': 1}] * 4)\nquery",
    "query.progress",
    "query.stop()",
]


@pytest.fixture(scope="module")
def shown():
    """The HTML that each cell shows, by its number."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return {
        number: output["data"]["text/html"]
        for number, cell in enumerate(notebook.cells)
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
    }


def test_a_stream_is_a_drawing_with_its_sinks(shown):
    assert shown[1].startswith("<svg")
    for text in ("posts", "places", "Count by place", "topics", "sink"):
        assert f">{text}</text>" in shown[2]
    assert ">totals</text>" in shown[3]


def test_a_query_shows_status_locality_and_the_link_to_its_page(shown):
    assert "<th>servers</th><td>3</td>" in shown[4]
    assert "<th>locality</th><td>100%</td>" in shown[5] or "<th>locality</th><td>0%</td>" in shown[5]
    assert '<a href="http://' in shown[5]


def test_progress_is_a_small_table(shown):
    assert "<th>rows</th><td>4</td>" in shown[6]
    assert "<td>topics</td><td>4</td>" in shown[6]


def boxes(drawing):
    root = ET.fromstring(drawing)
    rects = [e for e in root.iter() if e.tag.endswith("rect")]
    return (
        float(root.get("width")),
        float(root.get("height")),
        [(float(r.get("x")), float(r.get("y"))) for r in rects],
    )


def test_boxes_do_not_overlap_and_edges_go_to_the_right():
    one, other = weir.source("k string, n long", "one"), weir.source("k string, n long", "other")
    counted = one.count("k", name="a", emit="rows").count("n", name="b", emit="rows")
    both = counted.union(other, one.filter(lambda row: True)).count("k", name="c").sink(print, "out/")
    wide, high, places = boxes(svg(parts_of(weir.Application(both, other.count("n", name="d")))))
    assert len(places) == 8
    assert all(x >= 0 and x + WIDTH <= wide and y >= 0 and y + HEIGHT <= high for x, y in places)
    for x, y in places:
        near = [(a, b) for a, b in places if abs(a - x) < WIDTH and abs(b - y) < HEIGHT]
        assert near == [(x, y)]


def test_what_users_write_is_escaped():
    stream = weir.source("k string", "<b>").count("k", name="<script>").sink(lambda *_: None)
    drawing = stream._repr_html_()
    assert "<script>" not in drawing
    assert "&lt;script&gt;" in drawing
    ET.fromstring(drawing)
    assert table([["<b>", ("<i>", 'x"y')]]) == (
        '<table><tr><th>&lt;b&gt;</th><td><a href="x&quot;y" target="_blank">&lt;i&gt;</a></td></tr></table>'
    )


def test_a_stream_that_cannot_be_put_together_says_why():
    twice = weir.source("k string").count("k", emit="rows").keyed("k", weir.Aggregate(n="max(count)"))
    assert "two operators are named" in twice._repr_html_()


def test_a_query_that_has_not_begun_and_one_that_has_failed_can_be_shown():
    with start(weir.source("n long").map(lambda row: 1 // 0), servers=1) as query:
        assert "<th>batch</th><td>–</td>" in query._repr_html_()
        with pytest.raises(weir.errors.OperatorError):
            query.feed([{"n": 1}])
        assert "<th>status</th><td>failed</td>" in query._repr_html_()
