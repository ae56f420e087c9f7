"""The pages of several queries in a browser, behind nginx and below a path: everything works, controls included."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time

import pytest

import weir
from support import posts, two_counts
from weir.testing import start
from weir.watch.page_server import PageServer
from weir_evaluation.browser import DRAWN, browser, chromium

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine: apt-get install chromium"),
    pytest.mark.skipif(NGINX is None, reason="no nginx on this machine: apt-get install nginx-light"),
]
# one location whose path nginx leaves out, as most proxies do, and one whose path it passes on, as JupyterHub's does;
# the first says nothing of the browser's request, the second sends its headers
SETTINGS = """\
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /tools/weir/ {{ proxy_pass http://127.0.0.1:{plain}/; }}
    location /hub/user/weir/ {{
      proxy_pass http://127.0.0.1:{whole};
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Prefix /hub/user/weir;
    }}
  }}
}}
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def shows(tab, selector, text):
    tab.locator(selector).filter(has_text=text).first.wait_for(timeout=20_000)


def test_an_overview_and_its_pages_work_behind_nginx_below_a_path(tmp_path):
    port = free_port()
    (tmp_path / "ckpts").mkdir()
    query = start(two_counts(), str(tmp_path / "ckpts" / "posts"), servers=2, routing=weir.Locality(period=1))
    other = start(two_counts(), str(tmp_path / "ckpts" / "clicks"), servers=2)
    base = f"http://127.0.0.1:{port}"
    places = {
        "plain": {"public_url": f"{base}/tools/weir/"},
        "whole": {"public_url": f"{base}/hub/user/weir", "trusted_proxies": ["127.0.0.1"]},
    }
    folder = str(tmp_path / "ckpts")
    servers = {name: PageServer(folder, port=0, control=True, **terms) for name, terms in places.items()}
    ports = {name: server.port for name, server in servers.items()}
    (tmp_path / "nginx.conf").write_text(SETTINGS.format(folder=tmp_path, port=port, **ports))
    nginx = subprocess.Popen([NGINX, "-p", str(tmp_path), "-c", "nginx.conf", "-e", "errors"])
    try:
        with query, other, servers["plain"], servers["whole"], browser() as chrome:
            query.feed(posts(400, 0))
            end = time.monotonic() + 20
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < end:
                assert nginx.poll() is None, (tmp_path / "errors").read_text()
            for number, server in enumerate(servers.values(), 2):
                walk(chrome, server, base, query, number)
    finally:
        nginx.terminate()
        nginx.wait()


def walk(chrome, server, base, query, servers):
    """Look at the overview, click a query, follow it, and let it scale from so many servers."""
    tab, wrong = chrome.new_page(), []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda request: wrong.append(request.url) if not request.url.startswith(base) else None)
    assert server.url.startswith(base)
    tab.goto(server.url)
    tab.wait_for_selector(DRAWN)
    assert "token" not in tab.url
    shows(tab, "#verdict", "2 queries:")
    shows(tab, '[data-query="clicks"]', "none yet")
    tab.click('[data-query="posts"] a')
    tab.wait_for_selector("#tile-rows")
    batch = query.progress.batch + 1
    query.feed(posts(100 + servers, batch))  # the page is told through the proxy, which must not hold it back
    shows(tab, "#tile-rows", f"{100 + servers} in batch {batch}")
    tab.click("#scale-out")
    shows(tab, "#steer-answer", f"Would go from {servers} to {servers + 1} servers")
    tab.click("#do-it")
    for seed in range(100):
        query.feed(posts(50, seed))
        tab.wait_for_timeout(50)  # what the page does happens while it is waited for
        if "Done:" in tab.locator("#steer-answer").inner_text():
            break
    shows(tab, "#steer-answer", f"Done: from {servers} to {servers + 1} servers")
    assert query.topology.servers == servers + 1
    tab.click("#all")
    shows(tab, '[data-query="posts"] [data-name="servers"]', str(servers + 1))
    tab.close()
    assert wrong == []
