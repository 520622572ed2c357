"""The dashboard's files as the service hands them out."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from command_line import call, succeeded
from service_process import Reply, Served, serving_here


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that requires a token, and a request without one."""
    store = tmp_path_factory.mktemp("files") / "store.db"
    succeeded(call("serve", "--store", store, "--add-token", "reader"))
    with serving_here(store) as served:
        yield served


def links(page: Reply) -> list[str]:
    return [
        f"/{path}" for path in re.findall(r'(?:src|href)="(dashboard/[^"]+)"', page.body.decode())
    ]


def test_the_page_needs_no_token_and_the_rest_does(served: Served) -> None:
    page = served.send("GET", "/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    tag = {"If-None-Match": page.headers["etag"]}
    again = served.send("GET", "/", headers=tag)
    assert (again.status, again.body) == (304, b"")
    head = served.send("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(page.body))
    for path in ("/v1/progress", "/v1/jobs", "/dashboard/none.js", "/dashboard/", "/index.html"):
        assert served.send("GET", path).status == 401, path
    assert served.send("POST", "/").status == 401


def test_every_file_has_its_type_and_may_be_kept(served: Served) -> None:
    page = served.send("GET", "/")
    folder = links(page)[0].split("/")[2]
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
    types["svg"] = "image/svg+xml"
    root = Path(str(files("seqplan.api.dashboard")))
    paths = [path for path in root.rglob("*") if path.suffix[1:] in types]
    assert {"main.js", "dashboard.css", "uPlot.iife.min.js"} <= {path.name for path in paths}
    for path in paths:
        reply = served.send("GET", f"/dashboard/{folder}/{path.relative_to(root).as_posix()}")
        assert (reply.status, reply.body) == (200, path.read_bytes())
        assert reply.headers["content-type"] == types[path.suffix[1:]]
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert all(served.send("GET", link).status == 200 for link in links(page))


def test_nothing_from_elsewhere_and_nothing_inline(served: Served) -> None:
    page = served.send("GET", "/")
    for link in ("/", *links(page)):
        headers = served.send("GET", link).headers
        assert headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    text = page.body.decode()
    assert "://" not in text
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


def test_vendored_files_state_their_origin() -> None:
    vendor = files("seqplan.api.dashboard") / "vendor"
    version = re.search(
        r"uPlot/?.* \(v([\d.]+)\)", (vendor / "uPlot.iife.min.js").read_text("utf-8")
    )
    assert f"uPlot {version[1]}," in (vendor / "NOTICE").read_text("utf-8")
    assert "MIT License" in (vendor / "uPlot.LICENSE").read_text("utf-8")
