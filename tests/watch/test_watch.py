"""What is served: the numbers of the query, metrics, steering, and only to those who may."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

import weir
from support import posts, two_counts
from weir.errors import CheckpointError, EngineError
from weir.testing import start
from weir.watch.keys import find_key, hottest_keys
from weir.watch.page_server import PageServer
from weir.watch.reader import CheckpointReader
from weir.watch.snapshot import Health, Steering, decisions, snapshot, timeline

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def steered(tmp_path_factory):
    """A query of four batches that has been reconfigured, on two hosts, and a page that may steer it."""
    checkpoint = str(tmp_path_factory.mktemp("watch") / "checkpoint")
    routing = weir.Locality(period=1)
    with start(two_counts(), checkpoint, servers=4, hosts=["a", "b"], routing=routing) as query:
        for seed in range(4):
            query.feed(posts(800, seed))
            query.reconfigure(wait=True)
        with PageServer(checkpoint, port=0, control=True) as server:
            yield query, server


def ask(server, path, method="GET", body=None, **headers):
    """Return status and body of a request with the token as Prometheus would send it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    said = {"authorization": f"Bearer {server.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {k: v for k, v in said.items() if v is not None})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


# ---------------------------------------------------------------------- what it says


def test_the_present_is_what_progress_says(steered):
    query, server = steered
    answer, text = ask(server, "/api/now")
    now, did = json.loads(text), query.progress
    assert answer.status == 200
    assert (now["batch"], now["rows"], now["locality"]) == (did.batch, did.rows, did.locality)
    assert now["status"]["state"] == "running"
    assert {name: op["keys"] for name, op in now["operators"].items()} == did.state_keys
    assert [edge["rows"] for edge in now["edges"]] == [800, 800]
    assert now["edges"][1]["local"] == did.edges["places → topics"].local
    assert [server["host"] for server in now["servers"]] == ["a", "b", "a", "b"]
    assert sum(now["servers"][i]["load"]["places"] for i in range(4)) == pytest.approx(4, abs=0.01)
    assert now["graph"]["sources"] == ["source"]
    moved = [d for d in now["decisions"] if d["kind"] == "reconfigured"]
    assert moved[-1]["forecast"] == msgspec.to_builtins(query.decisions[0].forecast)
    assert moved[-1]["after"]["locality"] > moved[-1]["before"]["locality"]


def test_an_operator_that_is_mostly_idle_is_not_said_to_be_congested(steered):
    query, _ = steered
    reader = CheckpointReader(query.checkpoint)
    reader.latest.progress.load.congested = ["topics"]
    for busy, said in ((0.0, False), (1e6, True)):
        reader.latest.progress.operators["topics"].busy = busy
        now = snapshot(reader)
        assert now["operators"]["topics"]["congested"] == said
        assert any("topics cannot keep up" in line for line in now["health"].details) == said


def test_time_lines_have_every_batch_and_may_be_cut(steered):
    query, server = steered
    lines = json.loads(ask(server, "/api/timeline")[1])
    assert lines["batch"] == [p.batch for p in query.recent_progress]
    assert lines["locality"]["places → topics"] == [round(p.locality, 4) for p in query.recent_progress]
    assert lines["moved_keys"] == [p.moved_keys for p in query.recent_progress]
    assert lines["bytes_per_s"].keys() == {
        name for p in query.recent_progress for name in p.distance if p.distance[name]["rows"]
    }
    cut = json.loads(ask(server, f"/api/timeline?from={lines['time'][1]}&to={lines['time'][2]}")[1])
    assert cut["batch"] == [1, 2]
    assert ask(server, "/api/timeline?from=yesterday")[0].status == 400


def test_what_steering_brought_is_measured_against_what_was_before(steered):
    query, _ = steered
    reader = CheckpointReader(query.checkpoint)
    steering = Steering()
    brought = steering.of(reader.points[:2])
    assert steering.of(reader.points) == Steering().of(reader.points) != brought
    brought = steering.of(reader.points)
    by_hash = [p for p in query.recent_progress if not p.table_version]
    assert brought["before"] == pytest.approx(by_hash[0].locality)
    assert brought["since"] > brought["before"]
    assert brought["kept_rows"] > 0
    assert timeline(reader.points, reader.marks, 2, 0, float("inf"))["batches"] == [2, 2]
    assert [d["batch"] for d in decisions(reader.points, reader.marks)] == sorted(
        (m["batch"] for m in reader.marks), reverse=True
    )


def test_a_key_is_found_with_its_home_company_and_state(steered):
    query, server = steered
    homes = json.loads(ask(server, "/api/key?key=place%201")[1])
    (home,) = homes
    table = query.routing_table("places")
    assert (home["operator"], home["servers"]) == ("places", [table.lookup("place 1")])
    assert home["host"] == "ab"[home["servers"][0] % 2]
    assert home["state"] == [r for r in query.state("places").to_pylist() if r["place"] == "place 1"]
    assert (home["by"], home["since_batch"] >= 1) == ("table", True)
    # by how posts are made, most topics of place 1 are those numbered 10 to 19
    assert home["affinity"][0]["key"] in {f"topic {n}" for n in range(10, 20)}
    assert json.loads(ask(server, "/api/key?key=nowhere")[1]) == []


def test_the_hottest_keys_are_those_with_most_rows(steered):
    query, _ = steered
    reader = CheckpointReader(query.checkpoint)
    hot = hottest_keys(reader.storage, reader.latest)
    state = {row["place"]: row["count"] for row in query.state("places").to_pylist()}
    assert hot["places"][0]["key"] == max(state, key=state.get)
    assert set(hot) == {"places", "topics"}


def test_keys_of_several_columns_and_other_types():
    app = weir.source("a long, b string").keyed(["a", "b"], weir.Count(), name="pairs")
    with start(app, servers=2) as query:
        query.feed([{"a": 7, "b": "x, y"}, {"a": 8, "b": "z"}])
        last, storage = query._driver.ledger.last, query._driver.storage
        assert find_key(storage, last, "8, z")[0]["state"] == [{"a": 8, "b": "z", "count": 1}]
        assert find_key(storage, last, '[7, "x, y"]')[0]["state"] == [{"a": 7, "b": "x, y", "count": 1}]
        assert find_key(storage, last, "eight, z") == find_key(storage, last, "8") == []
        with pytest.raises(weir.WeirError, match="begins like a JSON list"):
            find_key(storage, last, "[7, ")


def test_metrics_have_prometheus_names_and_count_from_the_start(steered):
    query, server = steered
    from prometheus_client.parser import text_string_to_metric_families as parse

    def scrape():
        families = {family.name: family for family in parse(ask(server, "/metrics")[1])}
        samples = [s for family in families.values() for s in family.samples]
        return {(s.name, *(s.labels[k] for k in sorted(s.labels))): s.value for s in samples}

    before = scrape()
    assert before["weir_locality_ratio",] == query.progress.locality
    assert before["weir_operator_keys", "topics"] == query.progress.state_keys["topics"]
    query.feed(posts(800, 9))
    after, did = scrape(), query.progress
    assert after["weir_batches_total",] - before["weir_batches_total",] == 1
    assert after["weir_rows_total",] - before["weir_rows_total",] == 800
    assert after["weir_edge_rows_total", "process", "places → topics"] == did.edges["places → topics"].local
    assert after["weir_operator_rows_total", "in", "topics"] == 800
    assert after["weir_last_batch",] == did.batch
    assert after["weir_up",] == 1
    assert after["weir_batch_duration_seconds_bucket", "+Inf"] == 1


# ---------------------------------------------------------------------- whether it runs


def test_a_killed_query_has_stopped_and_one_that_goes_on_runs(checkpoint):
    program = (
        "import sys, os, signal; sys.path.insert(0, sys.argv[2])\n"
        "from support import posts, two_counts\nfrom weir.testing import start\n"
        "query = start(two_counts(), sys.argv[1], servers=2)\nquery.feed(posts(50, 0))\n"
        "print('fed', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program, checkpoint, str(HERE.parent)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "fed\n"
    reader = CheckpointReader(checkpoint)
    assert reader.status().state == "running"
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert reader.status().state == "gone"
    killed = Health("bad", "The query has stopped: it was killed.", [reader.status().text])
    assert snapshot(reader)["health"] == killed
    with start(two_counts(), checkpoint, servers=2) as query:
        assert reader.status().state == "running"
        query.feed(posts(50, 1))
    assert reader.status().state == "stopped"


def test_a_failed_query_says_why_until_a_batch_succeeds(checkpoint):
    def fussy(row):
        if row.place == "bad":
            raise ValueError("bad place")
        return True

    app = weir.source("place string").filter(fussy).keyed("place", weir.Count())
    query = start(app, checkpoint, servers=2)
    query.feed([{"place": "FR"}])
    with pytest.raises(weir.WeirError, match="bad place"):
        query.feed([{"place": "bad"}])
    reader = CheckpointReader(checkpoint)
    assert (reader.status().state, "bad place" in reader.status().text) == ("failed", True)
    query.feed([{"place": "US"}])
    reader.refresh()
    assert reader.status().state == "running"
    query.stop()
    with start(app, f"{checkpoint}-2", servers=2) as query, pytest.raises(weir.WeirError, match="bad place"):
        query.feed([{"place": "bad"}])
    early = snapshot(CheckpointReader(f"{checkpoint}-2"))
    assert (early["batch"], early["health"].level, early["status"].state) == (None, "bad", "failed")


def test_a_checkpoint_of_another_host_is_presumed_to_run(checkpoint, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("weir.engine.batch.fence.host_name", lambda: "elsewhere")
        query = start(two_counts(), checkpoint, servers=2)
        reader = CheckpointReader(checkpoint)
        assert snapshot(reader)["batch"] is None
        query.feed(posts(50, 0))
    assert reader.refresh() is True
    assert reader.refresh() is False
    assert reader.status().state == "presumed running"
    assert "on elsewhere" in reader.status().text
    query.stop()


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a Weir checkpoint"):
        PageServer(str(tmp_path), port=0)


# ---------------------------------------------------------------------- who may


def test_only_the_token_opens_it(steered):
    _, server = steered
    for path in ("/", "/api/now", "/metrics", "/static/main.js", "/api/events"):
        assert ask(server, path, authorization=None)[0].status == 401
        assert ask(server, path, authorization="Bearer wrong")[0].status == 401
    answer, _ = ask(server, f"/?token={server.token}", authorization=None)
    assert (answer.status, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax"} <= set(cookie.split("; "))
    answer, text = ask(server, "/", authorization=None, cookie=cookie.split(";")[0])
    assert (answer.status, "<title>Weir</title>" in text) == (200, True)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert server.token not in text


def test_other_hosts_and_origins_are_refused(steered):
    _, server = steered
    assert ask(server, "/api/now", host="evil.example")[0].status == 421
    assert ask(server, "/api/now", host=f"evil.example:{server.port}")[0].status == 421
    assert (
        ask(server, "/api/now", host=f"127.0.0.1:{server.port + 1}")[0].status == 200
    )  # a tunnel's own port
    tunnelled = {"host": "127.0.0.1:1", "origin": f"http://127.0.0.1:{server.port}"}
    assert ask(server, "/api/now", **tunnelled)[0].status == 403  # another page of this machine
    assert ask(server, "/api/now", host=f"localhost:{server.port}")[0].status == 200
    assert ask(server, "/api/now", origin="http://evil.example")[0].status == 403
    own = {"host": f"127.0.0.1:{server.port}", "origin": f"http://127.0.0.1:{server.port}"}
    body = {"operation": "out", "servers": 1}
    assert ask(server, "/api/dry-run", "POST", body, **own)[0].status == 200
    cookie = f"weir_{server.port}={server.token}"
    answer, text = ask(server, "/api/dry-run", "POST", body, authorization=None, cookie=cookie)
    assert (answer.status, "names its origin" in text) == (403, True)


def test_without_control_it_only_shows(steered):
    query, _ = steered
    with PageServer(query.checkpoint, port=0) as server:
        for path in ("/api/dry-run", "/api/steer"):
            answer, text = ask(server, path, "POST", {"operation": "in"})
            assert (answer.status, "--control" in text) == (403, True)
    assert query.topology.servers == 4


def test_steering_goes_through_the_checkpoint(checkpoint):
    routing = weir.Locality(period=1000)
    with start(two_counts(), checkpoint, servers=2, routing=routing) as query:
        query.feed(posts(200, 0))
        with PageServer(checkpoint, port=0, control=True) as server:
            told = json.loads(ask(server, "/api/dry-run", "POST", {"operation": "out", "servers": 2})[1])
            assert (told["from"], told["to"], query.topology.servers) == (2, 4, 2)
            assert fed_until_answered(query, server, {"operation": "out", "servers": 2})["to"] == 4
            assert query.topology.servers == 4
            assert fed_until_answered(query, server, {"operation": "reconfigure"})["state"] == "done"
            answer, text = ask(server, "/api/dry-run", "POST", {"operation": "in", "servers": 9})
            assert (answer.status, "at least one must remain" in text) == (409, True)
            for wrong in ({"operation": "explode"}, {}, [1]):
                assert ask(server, "/api/steer", "POST", wrong)[0].status == 400
        end = time.monotonic() + 20
        while not query.decisions and time.monotonic() < end:
            query.feed(posts(50, 2))
    assert query.decisions


def fed_until_answered(query, server, request):
    """Send a request, feed the query until it is answered, and return the answer."""
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(json.loads(ask(server, "/api/steer", "POST", request)[1]))
    )
    asking.start()
    end = time.monotonic() + 20
    while asking.is_alive() and time.monotonic() < end:
        query.feed(posts(50, 1))
        asking.join(0.05)
    return answers[0]


def test_a_query_may_serve_its_own_page(checkpoint):
    with start(two_counts(), checkpoint, servers=2, watch=True) as query:
        query.feed(posts(50, 0))
        token = query.page.partition("token=")[2]
        port = int(query.page.split(":")[2].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/api/now", headers={"authorization": f"Bearer {token}"})
        assert json.loads(connection.getresponse().read())["rows"] == 50
        with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{port}"):
            PageServer(checkpoint, port=port)
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=10).request("GET", "/")
    with pytest.raises(weir.WeirError, match="watch=99999: expected True, the port"):
        start(two_counts(), servers=2, watch=99999)


# ---------------------------------------------------------------------- behind a proxy


def steering(server, **headers):
    """Return the status of a dry run that a browser with the token's cookie asks for."""
    cookie = f"weir_{server.port}={server.token}"
    body = {"operation": "out", "servers": 1}
    return ask(server, "/api/dry-run", "POST", body, authorization=None, cookie=cookie, **headers)[0].status


def test_the_page_is_served_under_its_public_url_alone(steered):
    query, _ = steered
    url = "https://Example.org:9443/tools/weir"
    with PageServer(query.checkpoint, port=0, control=True, public_url=url + "/") as server:
        assert server.url == f"{url}/?token={server.token}"
        # whether the proxy leaves the path out or passes it on
        for path, to in (("/", "./"), ("/tools/weir/", "./"), ("/tools/weir/api/now", "./now")):
            answer, _ = ask(server, f"{path}?token={server.token}", authorization=None, host="example.org")
            assert (answer.status, answer.headers["location"]) == (303, to)
            assert {"Path=/tools/weir/", "Secure"} <= set(answer.headers["set-cookie"].split("; "))
        assert ask(server, "/tools/weir/api/now")[0].status == 200
        assert ask(server, "/tools/weir")[0].headers["location"] == "/tools/weir/"
        assert ask(server, "/tools/weirder/api/now")[0].status == 404
        assert ask(server, "/api/now", host="evil.example")[0].status == 421
        # a proxy's own Host, and the origin that the browser is at
        assert steering(server, origin="https://example.org:9443") == 200
        assert steering(server, host="example.org:9443", origin="https://example.org:9443") == 200
        assert steering(server, origin="https://example.org") == 403
        assert steering(server, origin="https://evil.example:9443") == 403


def test_forwarded_headers_are_believed_from_trusted_proxies_alone(steered):
    query, _ = steered
    told = {"x-forwarded-host": "evil.example, weir.example.org", "x-forwarded-proto": "https"}
    told["x-forwarded-prefix"] = "/tools"
    for proxies, trusted in ((["127.0.0.0/8"], True), (["10.0.0.0/8"], False)):
        terms = {"control": True, "allowed_hosts": ["weir.example.org"], "trusted_proxies": proxies}
        with PageServer(query.checkpoint, port=0, **terms) as server:
            status = steering(server, origin="https://weir.example.org", **told)
            assert status == (200 if trusted else 403)
            answer, _ = ask(server, f"/?token={server.token}", authorization=None, **told)
            cookie = set(answer.headers["set-cookie"].split("; "))
            assert ("Path=/tools/" if trusted else "Path=/") in cookie
            assert ("Secure" in cookie) == trusted
            foreign = {**told, "x-forwarded-host": "evil.example"}
            assert ask(server, "/api/now", **foreign)[0].status == (421 if trusted else 200)


def test_only_sites_that_are_named_may_frame_the_page(steered):
    query, server = steered
    assert ask(server, "/")[0].headers["content-security-policy"].endswith("frame-ancestors 'none'")
    terms = {"public_url": "https://example.org/", "frame_ancestors": ["https://hub.example.org", "'self'"]}
    with PageServer(query.checkpoint, port=0, **terms) as framed:
        answer, _ = ask(framed, f"/?token={framed.token}", authorization=None)
        policy = answer.headers["content-security-policy"]
        assert policy.endswith("frame-ancestors https://hub.example.org 'self'")
        assert {"SameSite=none", "Secure"} <= set(answer.headers["set-cookie"].split("; "))


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"public_url": "example.org/weir"}, "expected a whole address, as https://example.org/weir/"),
        ({"allowed_hosts": ["http://example.org"]}, "is no name of a host"),
        ({"allowed_hosts": "example.org"}, "expected a list of texts"),
        ({"trusted_proxies": ["nginx"]}, "'nginx' is no address or network"),
        ({"frame_ancestors": ["https://a.org; script-src *"]}, "more than one site"),
        ({"frame_ancestors": ["hub"]}, "'hub' is no site"),
    ],
)
def test_settings_that_cannot_be_are_refused(steered, terms, says):
    query, _ = steered
    with pytest.raises(EngineError, match=says):
        PageServer(query.checkpoint, port=0, **terms)


def test_a_query_says_how_its_page_is_served(checkpoint):
    watch = {"port": 0, "control": True, "token": "t", "public_url": "https://example.org/"}
    with start(two_counts(), checkpoint, servers=2, watch=watch) as query:
        assert query.page == "https://example.org/?token=t"
    with pytest.raises(weir.WeirError, match="watch= takes no 'prot'; did you mean 'port'"):
        start(two_counts(), checkpoint, servers=2, watch={"prot": 1})


# ---------------------------------------------------------------------- health


def healthy(server, path="/health/ready"):
    """Return the status and what is said, without a token."""
    answer, text = ask(server, path, authorization=None)
    return answer.status, json.loads(text)


def test_a_query_is_ready_while_it_takes_batches_and_keeps_up(checkpoint):
    query = start(two_counts(), checkpoint, servers=2)
    with PageServer(checkpoint, port=0) as server:
        nothing = {"ready": True, "state": "running", "batch": None, "lag": None, "why": ""}
        assert healthy(server) == (200, nothing)
        query.feed(posts(50, 0))
        status, said = healthy(server, "/health/ready?lag=1000")
        assert (status, said["batch"], said["lag"]) == (200, 0, query.progress.load.lag)
        status, said = healthy(server, "/health/ready?lag=-1")
        assert (status, said["ready"], "behind, more than -1 s" in said["why"]) == (503, False, True)
        done = query._driver.ledger.fence.preparing("compiling")
        assert healthy(server)[1]["why"] == "the query is being prepared"
        done()
        assert healthy(server)[0] == 200
        query.stop()
        assert healthy(server)[0] == 503
        assert healthy(server)[1]["why"] == "the query is stopped"
        assert healthy(server, "/health/live") == (200, {"live": True})
        assert ask(server, "/health/live", host="evil.example", authorization=None)[0].status == 421
        assert ask(server, "/healthy", authorization=None)[0].status == 401


# ---------------------------------------------------------------------- several queries


def test_an_overview_has_all_queries_of_a_folder_as_they_come(tmp_path):
    def one(path):
        return start(two_counts(), str(tmp_path / path), servers=2)

    with one("clicks/ckpt") as clicks, one("posts/ckpt") as quiet:
        clicks.feed(posts(50, 0))
        with PageServer(str(tmp_path), port=0) as server:
            now = json.loads(ask(server, "/api/now")[1])
            assert {q["name"]: q["batch"] for q in now["queries"]} == {"clicks~ckpt": 0, "posts~ckpt": None}
            assert now["queries"][0]["locality"] == clicks.progress.locality
            alone = json.loads(ask(server, "/query/clicks~ckpt/api/now")[1])
            assert (alone["rows"], alone["overview"]) == (50, True)
            assert ask(server, "/query/nobody/api/now")[0].status == 404
            assert ask(server, "/query/clicks~ckpt")[0].headers["location"] == "./clicks~ckpt/"
            assert ask(server, "/query/clicks~ckpt/api/now", authorization=None)[0].status == 401
            status, said = healthy(server)
            assert (status, said["ready"], said["queries"]["clicks~ckpt"]["batch"]) == (200, True, 0)
            with one("late"):
                end = time.monotonic() + 20
                while len(now["queries"]) < 3 and time.monotonic() < end:
                    now = json.loads(ask(server, "/api/now")[1])
            assert "late" in {q["name"] for q in now["queries"]}
            assert healthy(server)[0] == 503  # one of them has stopped
            text = ask(server, "/metrics")[1]
            assert 'weir_last_batch{query="clicks~ckpt"} 0.0' in text
            assert text.count("# TYPE weir_up gauge") == 1
            clicks.feed(posts(70, 1))
            assert 'weir_rows_total{query="clicks~ckpt"} 70.0' in ask(server, "/metrics")[1]
        with PageServer([clicks.checkpoint, quiet.checkpoint], port=0) as server:
            now = json.loads(ask(server, "/api/now")[1])
            assert [q["name"] for q in now["queries"]] == ["clicks~ckpt", "posts~ckpt"]
    (tmp_path / "clicks" / "ckpt" / "weir").write_text("damaged")
    with PageServer(str(tmp_path), port=0) as server:
        (broken,) = json.loads(ask(server, "/api/now")[1])["broken"]
        assert broken["name"] == "clicks~ckpt"
        assert "damaged" in broken["why"]
