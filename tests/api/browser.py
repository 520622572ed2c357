"""A headless Chromium, driven through chromedriver: W3C WebDriver is JSON over HTTP."""

import base64
import http.client
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

_SHOWN = (
    "[document.querySelector(arguments[0])].map(e => e?.checkVisibility() ? e.innerText : '')[0]"
)

Fields = dict[str, Any]


def missing() -> str | None:
    """Return the missing parts of a browser, or None."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not installed" if lacking else None


class Page:
    """A tab. Elements are found by CSS selectors."""

    def __init__(self, port: int, session: str) -> None:
        self._port = port
        self._session = session

    def command(self, method: str, path: str, body: Fields | None = None) -> Any:
        return _command(self._port, method, f"/session/{self._session}{path}", body)

    def devtools(self, name: str, **params: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": params})

    def open(self, url: str) -> None:
        self.command("POST", "/url", {"url": url})

    def size(self, width: int, height: int) -> None:
        """Of the viewport (CSS pixels), however narrow: a window could not be so."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefers(self, **features: str) -> None:
        """Media features, for example ``prefers_color_scheme="dark"``."""
        features_list = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=features_list)

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of a function returns in the page."""
        return self.command("POST", "/execute/sync", {"script": script, "args": arguments})

    def text(self, selector: str) -> str:
        """Return an element's visible text; "" without it or if it is hidden."""
        return str(self.run(f"return {_SHOWN}", selector))

    def until(self, script: str, *arguments: Any) -> Any:
        """What the function returns, once that is true."""
        ends = time.monotonic() + PATIENCE_S
        while not (outcome := self.run(script, *arguments)):
            assert time.monotonic() < ends, (script, arguments, self.text("body"), self.log())
            time.sleep(0.05)
        return outcome

    def until_text(self, selector: str, pattern: str) -> str:
        """The text of an element once it has the pattern in it."""
        script = f"const found = {_SHOWN}; return new RegExp(arguments[1]).test(found) && found"
        return str(self.until(script, selector, pattern))

    def click(self, selector: str) -> None:
        self.command("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.command("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Keys, by WebDriver's code points, on whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        typed = {"type": "key", "id": "keyboard", "actions": actions}
        self.command("POST", "/actions", {"actions": [typed]})

    def log(self) -> list[str]:
        """Return new lines of the console: errors, rejected loads, violations."""
        entries = self.command("POST", "/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """The whole page, or what the viewport shows of it, as PNG."""
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _find(self, selector: str) -> str:
        element = self.command("POST", "/element", {"using": "css selector", "value": selector})
        return str(element[_ELEMENT])


TAB, RIGHT, LEFT, HOME, END, ENTER = "\ue004", "\ue014", "\ue012", "\ue011", "\ue010", "\ue007"


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a fresh profile in the folder ``profile``, ended with the block."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None
    try:
        while not (
            ready := re.search(r"successfully on port (\d+)", line := driver.stdout.readline())
        ):
            assert line, "chromedriver has ended"
        port = int(ready[1])
        options = {
            "binary": shutil.which("chromium"),
            "args": [*_FLAGS, f"--user-data-dir={profile}"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        capabilities = {"capabilities": {"alwaysMatch": wanted}}
        page = Page(port, _command(port, "POST", "/session", capabilities)["sessionId"])
        try:
            yield page
        finally:
            page.command("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(PATIENCE_S)
        driver.stdout.close()


def _command(port: int, method: str, path: str, body: Fields | None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * PATIENCE_S)
    try:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        value = json.loads(connection.getresponse().read())["value"]
    finally:
        connection.close()
    if isinstance(value, dict) and "error" in value:
        raise AssertionError(f"{method} {path}: {value['error']}: {value['message']}")
    return value
