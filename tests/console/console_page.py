"""The console in a browser, as a person uses it."""

import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from browser import WAIT_SECONDS
from console.console_server import TOKEN, ConsoleServer
from doc_pages import ROOT

AXE = ROOT / "console/node_modules/axe-core/axe.min.js"
WIDE, NARROW = (1280, 800), (390, 844)


class ConsolePage:
    """A tab of a browser that shows the console of one server."""

    def __init__(self, driver: Any, server: ConsoleServer) -> None:
        self.driver, self.server = driver, server

    def sign_in(self, secret: str | None = None) -> None:
        """Open the printed URL or, with a secret, the page of a browser without a cookie, and enter it."""
        self.driver.get(f"{self.server.url}/?token={TOKEN}" if secret is None else f"{self.server.url}/")
        if secret is not None:
            self.find("#key").send_keys(secret + Keys.ENTER)
        self.wait_for("nav")

    def open(self, address: str) -> None:
        self.driver.get(f"{self.server.url}/{address}")

    def resize(self, size: tuple[int, int], scheme: str = "light") -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> Any:
        return self.wait_for(selector)

    def find_all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def wait_for(self, selector: str, text: str = "") -> Any:
        """Return the first element with this selector that contains the text, once there is one."""

        def look(driver: Any) -> Any:
            found = driver.execute_script(
                "return [...document.querySelectorAll(arguments[0])].find(e => e.textContent.includes(arguments[1]))",
                selector,
                text,
            )
            return found or None

        try:
            return WebDriverWait(self.driver, WAIT_SECONDS, poll_frequency=0.05).until(look)
        except TimeoutException:
            shown = self.read_text("body")[:3000]
            raise AssertionError(f"no {selector} with {text!r} on {self.driver.current_url}: {shown}") from None

    def wait_for_script(self, script: str) -> None:
        WebDriverWait(self.driver, WAIT_SECONDS, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(script)
        )

    def wait_until_gone(self, selector: str) -> None:
        WebDriverWait(self.driver, WAIT_SECONDS).until(
            lambda driver: not driver.find_elements(By.CSS_SELECTOR, selector)
        )

    def read_text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.driver.execute_script(script, selector))

    def click(self, selector: str, text: str = "") -> None:
        self.wait_for(selector, text).click()

    def fill(self, selector: str, text: str) -> None:
        element = self.find(selector)
        element.send_keys(Keys.CONTROL, "a")
        element.send_keys(text)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def list_faults(self) -> list[str]:
        """Return errors in the log of the browser, except for connections that the test has cut."""
        log = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in log if "ERR_" not in message and "status of " not in message]

    def list_violations(self) -> list[str]:
        """Return what axe-core finds serious or critical on the page as it is."""
        self.driver.execute_script(AXE.read_text())
        found = self.driver.execute_async_script(
            "axe.run(document, {resultTypes: ['violations']}).then(r => arguments[0](JSON.stringify(r.violations)))"
        )
        return [
            f"{one['id']}: {node['html'][:200]}"
            for one in json.loads(found)
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def take_pictures(self, name: str) -> None:
        """Take the pictures of the documentation if STANDFAST_PICTURES is set.

        Nothing may be cut off, and what can be read in the light on a wide screen can be read in the dark on a
        telephone.
        """
        for size in (WIDE, NARROW):
            for scheme in ("light", "dark"):
                self.resize(size, scheme)
                width = self.driver.execute_script(
                    "return Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth)"
                )
                assert width <= size[0], f"{name} is {width} pixels wide on a screen of {size[0]}"
                folder = os.environ.get("STANDFAST_PICTURES")
                if folder:
                    target = Path(folder)
                    target.mkdir(parents=True, exist_ok=True)
                    picture = Image.open(BytesIO(self.driver.get_screenshot_as_png()))
                    # Few colours: the pictures are part of the repository.
                    picture.convert("RGB").quantize(64).save(target / f"{name}-{size[0]}-{scheme}.png", optimize=True)
        found = self.list_violations()
        self.resize(WIDE)
        assert found == [], name
