"""The report in a browser: what a reader sees, clicks and types. Skipped where there is no Chromium."""

import base64
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import jointembed as je
from jointembed.model import Config
from jointembed.report.facts import gather
from jointembed.report.page import render

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
browser_needed = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on the PATH")

IMAGES = 120
HOSTILE = "<script>alert(1)</script>"
NAMES = {0: "quote\"'.png", 1: "line\nbreak.png", 2: "שלום.png", 3: "\u202egnp.exe", 4: "<img src=x onerror=alert(2)>"}


@pytest.fixture(scope="module")
def facts(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Facts of digits with names and a label that try to be more than text, and of a second run beside it."""
    other = tmp_path_factory.mktemp("other") / "untrained"
    Config("vje", {}, "resnet10-tiny", 1, 8, [0.3], [0.4]).build().save(other)
    source = je.data.open_source("digits").subset(range(IMAGES))
    source.names = [NAMES.get(i, f"digit-{i:03}.png") for i in range(IMAGES)]
    source.class_names = (HOSTILE, *(f"digit {i}" for i in range(1, 10)))
    return gather([run, other], source, IMAGES)


@pytest.fixture(scope="module")
def report(facts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(facts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(120)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def opened(chrome: Any, report: Path) -> Any:
    chrome.get(report.as_uri())
    wait(lambda: chrome.execute_script("return document.documentElement.dataset.ready") == "true")
    return chrome


@pytest.fixture
def page(opened: Any) -> Any:
    """The page as it is when it has just been opened."""
    opened.execute_script("""
        document.getElementById("search").value = "";
        document.getElementById("all-labels").click();
        document.getElementById("run").value = "0";
        document.getElementById("run").dispatchEvent(new Event("change"));
        window.scrollTo(0, 0);
    """)
    return opened


def wait(condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def text(page: Any, selector: str) -> str:
    return page.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def click(page: Any, selector: str) -> None:
    """Click in the middle of the window, where nothing of the browser's own lies over the page."""
    element = page.execute_script(
        "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'}); return e", selector
    )
    element.click()


def canvas_pixels(page: Any, selector: str) -> np.ndarray:
    url = page.execute_script("return document.querySelector(arguments[0]).toDataURL()", selector)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("L"))


def point_at(page: Any, index: int) -> Any:
    """Move the pointer to an image on the map, from outside."""
    from selenium.webdriver import ActionChains

    page.execute_script("document.getElementById('map-plot').scrollIntoView({block: 'center'})")
    x, y = page.execute_script(
        """
        const gd = document.getElementById("map-plot"), {_size: size, xaxis, yaxis} = gd._fullLayout;
        const k = gd.data[0].customdata.indexOf(arguments[0]), box = gd.getBoundingClientRect();
        return [box.left + size.l + xaxis.c2p(gd.data[0].x[k]), box.top + size.t + yaxis.c2p(gd.data[0].y[k])];
        """,
        index,
    )
    actions = ActionChains(page, duration=20)
    actions.w3c_actions.pointer_action.move_to_location(round(x) + 3, round(y) + 3)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    return actions


@browser_needed
def test_pointing_at_a_point_shows_its_image(page: Any, facts: dict[str, Any]) -> None:
    expected = je.data.open_source("digits").batch(range(IMAGES)).numpy()[:, 0]
    # The point that has most room around it, so that no other is nearer to the pointer.
    places = np.stack([facts["runs"][0]["maps"]["t-SNE"][axis] for axis in "xy"], 1)
    distance = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(IMAGES, np.inf))
    index = int(distance.min(1).argmax())
    point_at(page, index).perform()
    wait(lambda: page.execute_script("return !document.getElementById('hover').hidden"))
    assert facts["images"]["names"][index] in text(page, "#hover")
    shown = canvas_pixels(page, "#hover canvas")
    assert shown.shape == (112, 112)
    np.testing.assert_array_equal(shown[7::14, 7::14], expected[index])  # every pixel is drawn 14 times as large

    point_at(page, index).click().perform()
    wait(lambda: page.execute_script("return document.getElementById('detail').dataset.image") == str(index))
    near = "return [...document.querySelectorAll('#detail .tile canvas')].map((canvas) => Number(canvas.dataset.image))"
    assert page.execute_script(near) == facts["runs"][0]["neighbours"][index]
    page.execute_script("document.querySelector('#detail .tile').click()")
    first = facts["runs"][0]["neighbours"][index][0]
    assert text(page, "#detail dd") == facts["images"]["names"][first]


@browser_needed
def test_the_slider_changes_the_number_of_alarms(page: Any, facts: dict[str, Any]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    alarm = facts["runs"][0]["alarm"]
    slider = page.find_element(By.ID, "rate")
    for key, step in ((Keys.END, alarm["steps"][-1]), (Keys.ARROW_LEFT, alarm["steps"][-2])):
        slider.send_keys(key)
        assert text(page, "#above-count").startswith(f"{step['above']} of {IMAGES} images")
        assert text(page, "#rate-value") == f"{100 * step['rate']:g} %"
        line = page.execute_script("return document.getElementById('histogram')._fullLayout.shapes[0].x0")
        assert line == pytest.approx(step["value"])
    assert alarm["steps"][-1]["above"] != alarm["steps"][-2]["above"]


@browser_needed
def test_search_labels_and_colours(page: Any, facts: dict[str, Any]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    shown = "return document.getElementById('map-plot').data[0].customdata"
    page.find_element(By.ID, "search").send_keys("DIGIT-04")
    assert page.execute_script(shown) == list(range(40, 50))
    assert text(page, "#count") == f"10 of {IMAGES} images"
    page.find_element(By.ID, "search").clear()
    click(page, "#labels input[data-label='7']")
    labels = facts["images"]["labels"]
    assert page.execute_script(shown) == [i for i in range(IMAGES) if labels[i] != 7]
    click(page, "#no-labels")
    assert text(page, "#count") == f"0 of {IMAGES} images"
    click(page, "#all-labels")

    colour = "return document.getElementById('map-plot').data[0].marker.color"
    colours = page.execute_script(colour)
    assert all((colours[i] == colours[0]) == (labels[i] == labels[0]) for i in range(IMAGES))
    Select(page.find_element(By.ID, "colour")).select_by_visible_text("anomaly score: density")
    assert page.execute_script(colour) == facts["runs"][0]["scores"]["density"]
    x = "return document.getElementById('map-plot').data[0].x"
    click(page, "#projections input[value='PCA']")
    assert page.execute_script(x) == facts["runs"][0]["maps"]["PCA"]["x"]


@browser_needed
def test_everything_on_the_map_can_be_reached_with_the_keyboard(page: Any, facts: dict[str, Any]) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    first = page.execute_script("return document.querySelector('a, button, input, select, [tabindex]')")
    assert first.rect["x"] < 0 and first.get_attribute("textContent") == "Skip to the summary"
    page.execute_script("arguments[0].focus()", first)
    assert first.rect["x"] >= 0
    first.send_keys(Keys.ENTER)
    assert page.current_url.endswith("#summary")
    page.find_element(By.ID, "search").send_keys("digit-1")
    keys = ActionChains(page).send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    keys.perform()
    assert text(page, "#detail dd") == "digit-102.png"
    assert page.switch_to.active_element.get_attribute("aria-selected") == "true"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.execute_script(outline) == "solid"
    ActionChains(page).send_keys(Keys.TAB, Keys.ENTER).perform()  # the first neighbour
    assert text(page, "#detail dd") == facts["images"]["names"][facts["runs"][0]["neighbours"][102][0]]
    unnamed = """return [...document.querySelectorAll("input, select, button, canvas")].filter(
        (e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim() || e.querySelector("[aria-label]"))
    ).map((e) => e.outerHTML)"""
    assert page.execute_script(unnamed) == []


@browser_needed
def test_names_and_labels_are_text(page: Any) -> None:
    assert HOSTILE in text(page, "#labels") and HOSTILE in text(page, "#confusion")
    listed = text(page, "#matches")
    for shown in (NAMES[0], r"line\nbreak.png", NAMES[2], r"\u202egnp.exe", NAMES[4]):
        assert shown in listed
    assert page.execute_script("return document.querySelectorAll('img[src=x], main script').length") == 0
    from selenium.common.exceptions import NoAlertPresentException

    with pytest.raises(NoAlertPresentException):
        _ = page.switch_to.alert.text


@browser_needed
def test_another_run_fills_the_page(page: Any, facts: dict[str, Any]) -> None:
    rows = text(page, "#comparison")
    assert "lejepa" in rows and "vje" in rows and "untrained" in rows
    page.execute_script(
        "const run = document.getElementById('run'); run.value = '1'; run.dispatchEvent(new Event('change'))"
    )
    wait(lambda: text(page, "#sentences").startswith("A resnet10-tiny network was trained with vje"))
    assert text(page, "#alarm .note") == "Left out. " + facts["runs"][1]["missing"]["alarm"]
    assert not page.execute_script("return document.getElementById('histogram').checkVisibility()")
    assert page.execute_script("return document.getElementById('class-variance').checkVisibility()")
    colours = text(page, "#colour")
    assert "uncertainty" in colours and "joint" in colours and "density" not in colours


@browser_needed
def test_a_telephone_needs_no_sideways_scrolling(page: Any) -> None:
    size = {"width": 375, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wait(lambda: page.execute_script("return window.innerWidth") == 375)
        wait(lambda: page.execute_script("return document.documentElement.scrollWidth") <= 375)
        wide = """return [...document.querySelectorAll("main *")].filter((e) => e.checkVisibility()
            && !e.closest(".scroll, svg, canvas, #matches") && e.getBoundingClientRect().right > 376
        ).map((e) => e.outerHTML)"""
        wait(lambda: page.execute_script(wide) == [])
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@browser_needed
def test_dark_mode_is_dark_in_plots_too(page: Any) -> None:
    def brightness(colour: str) -> float:
        return float(np.mean([float(part) for part in colour.strip("rgba()").split(",")[:3]]))

    ground = "return getComputedStyle(document.body).backgroundColor"
    tick = "return getComputedStyle(document.querySelector('#histogram .xtick text')).fill"
    assert brightness(page.execute_script(ground)) > 200 > 80 > brightness(page.execute_script(tick))
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        wait(lambda: brightness(page.execute_script(tick)) > 180)
        assert brightness(page.execute_script(ground)) < 50
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@browser_needed
def test_nothing_is_asked_of_a_network_and_the_console_stays_empty(page: Any, report: Path) -> None:
    """Last, over all that the tests above have done on the page."""
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert report.as_uri() in urls
    assert {url.partition(":")[0] for url in urls - {report.as_uri()}} <= {"data", "blob"}
    assert page.get_log("browser") == []
    blocked = page.execute_async_script(
        "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('sent'), (e) => done(String(e)))"
    )
    assert "Failed to fetch" in blocked
    assert any("Content Security Policy" in entry["message"] for entry in page.get_log("browser"))


def test_the_page_is_closed_to_markup_and_small(facts: dict[str, Any], report: Path) -> None:
    content = report.read_text(encoding="utf-8")
    assert HOSTILE not in content and "alert(2)>" not in content.replace("\\u003c", "<").split("</style>")[0]
    start = content.index('id="facts">') + len('id="facts">')
    embedded = content[start : content.index("</script>", start)]
    assert json.loads(embedded) == json.loads(json.dumps(facts))
    assert "<" not in embedded
