"""A headless Chromium, spoken to through its debugging pipe: no driver, no port."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def found() -> str | None:
    """The browser of this machine, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page in a browser; `events` holds everything that it reported."""

    def __init__(self, profile: Path, width: int, height: int = 844):
        inward, outward = os.pipe(), os.pipe()
        command = [str(found()), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
        # the browser reads commands on descriptor 3 and answers on 4
        opened = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", opened, "bash", str(inward[0]), str(outward[1]), *command],
            pass_fds=(inward[0], outward[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(inward[0])
        os.close(outward[1])
        self.to, self.back = os.fdopen(inward[1], "wb"), os.fdopen(outward[0], "rb")
        self.events: list[dict[str, Any]] = []
        self.count, self.session = 0, None
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path) -> None:
        self.ask("Page.navigate", url=path.as_uri())
        limit = time.monotonic() + 20
        while self.value("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < limit, "the page did not load"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def close(self) -> None:
        self.to.close()
        self.back.close()
        self.process.terminate()
        self.process.wait(10)

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self.back.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        return json.loads(data)
