"""Pages of other sites in a browser that reaches the service: they upload nothing, see no jobs."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from browser import Page
from stocked_service import Stocked

UPLOAD = """
const requested = {method: 'POST', mode: 'no-cors', body: '5\\n6\\n7\\n'};
fetch(arguments[0] + '/v1/lengths?format=txt', requested)
  .then(() => { document.title = 'requested'; }, () => { document.title = 'rejected'; });
"""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """The address of another site, with one empty page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_foreign_page_uploads_nothing(stocked: Stocked, elsewhere: str, page: Page) -> None:
    before = stocked.served.ok("GET", "/v1/lengths")
    for host in ("127.0.0.1", "localhost"):  # of the same site, and of another
        page.open(elsewhere)
        page.run(UPLOAD, stocked.served.url.replace("127.0.0.1", host))
        page.until("return document.title === 'requested'")
    assert stocked.served.ok("GET", "/v1/lengths") == before
    metrics = stocked.served.send("GET", "/metrics").body.decode()
    assert 'seqplan_requests_total{status="403"} 2.0' in metrics
    page.open("about:blank")
    assert all("403 (Forbidden)" in line for line in page.log())


def test_another_name_of_loopback_shows_no_jobs(stocked: Stocked, page: Page) -> None:
    stocked.job("here", steps=1)
    page.open(stocked.served.url.replace("127.0.0.1", "evil.localhost") + "/v1/jobs")
    assert "foreign-host" in page.run("return document.body.textContent")
    page.open(stocked.served.url.replace("127.0.0.1", "localhost"))
    page.until_text("#job-table", "here")
    assert all("403 (Forbidden)" in line for line in page.log())
