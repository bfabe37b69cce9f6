"""Debian's Chromium, headless and offline, and what a page did in it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND")


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser; the test fails where it is not installed."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        pytest.fail(f"{' and '.join(missing)} not found: run scripts/system-packages.sh, which installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(str(programs["chromedriver"])))
    try:
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield driver
    finally:
        driver.quit()


def open_page(driver: webdriver.Chrome, page: Path, width: int = 1100, scheme: str = "light") -> None:
    """At this width, in this colour scheme; logs begin with it."""
    driver.get("about:blank")
    for log in ("browser", "performance"):
        driver.get_log(log)
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    driver.get(page.as_uri())


def said(driver: webdriver.Chrome) -> list[str]:
    """What the console has, of any level, since the last call."""
    return [f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser")]


def requested(driver: webdriver.Chrome) -> list[str]:
    """The URLs that were asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
