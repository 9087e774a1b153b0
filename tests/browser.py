"""A headless Chromium, spoken to over pipes in its own protocol: JSON messages that end with a zero byte."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio")


class Browser:
    """One page. `messages` keeps every event that was seen while waiting for answers."""

    def __init__(self, write: int, read: int) -> None:
        self.write, self.number, self.session = write, 0, None
        self.arrived: Queue[dict[str, Any]] = Queue()
        self.messages: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, args=(read,), daemon=True).start()

    def _listen(self, read: int) -> None:
        with open(read, "rb") as stream:
            rest = b""
            while part := stream.read1(65536):
                *whole, rest = (rest + part).split(b"\0")
                for message in whole:
                    self.arrived.put(json.loads(message))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(Empty):
                told = self.arrived.get(timeout=1)
                if told.get("id") == self.number:
                    assert "error" not in told, told
                    return told["result"]
                self.messages.append(told)
        raise AssertionError(f"the browser does not answer {method}")

    def open(self, url: str, ready: str = "true", width: int | None = None, scheme: str | None = None) -> None:
        """Load a page and wait until it is complete and `ready`; `width` makes it a phone's or a desk's, `scheme` light
        or dark."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        if width is not None:
            size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
            self.call("Emulation.setDeviceMetricsOverride", **size)
        if scheme is not None:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href !== 'about:blank' && {ready}")

    def ask(self, expression: str) -> Any:
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, expression: str) -> Any:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if value := self.ask(expression):
                return value
            time.sleep(0.1)
        raise AssertionError(f"never true: {expression}; the page: {self.ask('document.body.innerText')}")

    def screenshot(self, path: Path) -> None:
        """The whole page, down to its end, as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(shot))

    def drop(self, file: Path, selector: str) -> None:
        """Drag a file over an element and let it go, as the system would tell the browser."""
        x, y = self.ask(
            f"(() => {{ const b = document.querySelector('{selector}').getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser with its profile in `folder`."""
    assert CHROMIUM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # the protocol wants the numbers 3 and 4; the shell gives them those
    command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    options = [*FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", command, CHROMIUM, *options],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    browser = Browser(ours_out, ours_in)
    try:
        yield browser
    finally:
        browser.session = None
        with contextlib.suppress(AssertionError, OSError):
            browser.call("Browser.close")
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(ours_out)
