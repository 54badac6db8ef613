"""Drives Chromium over its debugging protocol, through a pipe: no driver, no port, no package.

`Chromium` is one browser with a profile of its own; `Tab` is a page in it. A tab collects the errors of its page: those
in its console, exceptions, and violations of the content security policy.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


def executable() -> str | None:
    """Where Chromium is; None if it is not installed."""
    found = subprocess.run([ROOT / "tools" / "ensure-chromium", "--find"], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


class Chromium:
    """One browser. Leaving it ends the process."""

    def __init__(self, profile: Path) -> None:
        path = executable()
        assert path is not None, "Chromium is not installed; tools/ensure-chromium installs it where it can"
        commands, self._to = os.pipe()
        self._from, events = os.pipe()

        def pipes() -> None:  # the browser reads from 3 and writes to 4
            os.dup2(commands, 13)
            os.dup2(events, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        with (profile.parent / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(
                [path, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
                stdout=log, stderr=log, pass_fds=(3, 4, commands, events), preexec_fn=pipes,
            )  # fmt: skip
        os.close(commands)
        os.close(events)
        self._number = 0
        self._lock = threading.Lock()
        self._replies: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._thread = threading.Thread(target=self._read, name="chromium", daemon=True)
        self._thread.start()

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(PATIENCE_S)
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        reply: queue.Queue[dict[str, Any]] = queue.Queue()
        with self._lock:
            self._number += 1
            number = self._number
            self._replies[number] = reply
            message: dict[str, Any] = {"id": number, "method": method, "params": params}
            if session is not None:
                message["sessionId"] = session
            os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = reply.get(timeout=PATIENCE_S)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def tab(self, *, width: int = 1280, height: int = 800, dark: bool = False) -> Tab:
        """A page in a context of its own, without the cookies and the storage of others."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, context)
        self._tabs[session] = tab
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.send(f"{domain}.enable")
        tab.show(width=width, height=height, dark=dark)
        return tab

    def _read(self) -> None:
        buffer = b""
        while True:
            try:
                piece = os.read(self._from, 1 << 20)
            except OSError:
                return
            if not piece:
                return
            buffer += piece
            *messages, buffer = buffer.split(b"\0")
            for raw in messages:
                message = json.loads(raw)
                if "id" in message:
                    self._replies.pop(message["id"]).put(message)
                elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                    tab.hear(message["method"], message["params"])


class Tab:
    """A page."""

    def __init__(self, browser: Chromium, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context
        self.errors: list[str] = []
        self.transferred = 0

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            facts = params["exceptionDetails"]
            self.errors.append(str(facts.get("exception", {}).get("description", facts["text"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.errors.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Network.loadingFinished":
            self.transferred += int(params["encodedDataLength"])

    def show(self, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Set the size of the window, and the colours that the user prefers."""
        mobile = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )  # fmt: skip
        self.send(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ],
        )

    def open(self, url: str) -> None:
        """Open a page anew, also where only the part after `#` differs."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{script[:200]}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def until(self, condition: str, what: str = "") -> Any:
        """Wait for an expression to be true; its value."""
        deadline = time.monotonic() + PATIENCE_S / 4
        while True:
            with contextlib.suppress(AssertionError):  # the page is being replaced
                value = self.run(condition)
                if value:
                    return value
            if time.monotonic() > deadline:
                text = self.run("document.body?.innerText") or ""
                raise AssertionError(
                    f"{what or condition} did not come; errors {self.errors}; the page:\n{text[:3000]}"
                )
            time.sleep(0.05)

    def sees(self, text: str) -> None:
        """Wait for text on the page."""
        self.until(f"document.body?.innerText.includes({json.dumps(text)})", f"the text {text!r}")

    def click(self, selector: str, text: str = "") -> None:
        """Click the first visible element that matches and contains the text."""
        find = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.offsetParent !== null && "
            f"!e.disabled && e.textContent.includes({json.dumps(text)}))"
        )
        self.until(f"!!({find})", f"{selector} with {text!r}")
        self.run(f"({find}).click()")

    def fill(self, selector: str, value: str) -> None:
        """Write into a field, as a user does."""
        self.until(f"!!document.querySelector({json.dumps(selector)})", selector)
        self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); "
            f"e.value = {json.dumps(value)}; for (const kind of ['input', 'change']) "
            f"e.dispatchEvent(new Event(kind, {{ bubbles: true }})) }})()"
        )

    def press(self, key: str, *, control: bool = False, code: str = "") -> None:
        """Press a key."""
        text = key if len(key) == 1 and not control else ""
        keys = {"Enter": 13, "ArrowDown": 40, "ArrowUp": 38, "Escape": 27, "Tab": 9}
        number = keys.get(key, ord(key.upper()[0]))
        fields = {"key": key, "code": code or key, "modifiers": 2 if control else 0, "windowsVirtualKeyCode": number}
        self.send("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **fields)

    def downloads(self, directory: Path) -> None:
        """Save downloads to a directory, each with its name once it is complete."""
        self._browser.send(
            "Browser.setDownloadBehavior", behavior="allow", browserContextId=self._context, downloadPath=str(directory)
        )

    def close(self) -> None:
        """Close the page: it reads no more."""
        self.send("Page.navigate", url="about:blank")

    def screenshot(self) -> bytes:
        """The window as a PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])


@contextlib.contextmanager
def chromium(directory: Path) -> Iterator[Chromium]:
    """A browser with a new profile below the directory."""
    with Chromium(directory / "profile") as browser:
        yield browser
