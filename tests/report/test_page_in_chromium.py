"""The page in a real browser without a network: whole, silent, fit for a phone, the dark, and no JavaScript."""

import re

import pytest
from chromium import chromium, open_page, requested, said
from page_subject import STATUSES
from selenium.webdriver.common.by import By

from specproof.report.page import verdict_page

LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA, for text of ordinary size


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


def test_where_the_browser_is_missing_the_test_fails_and_names_the_script(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(pytest.fail.Exception, match=r"chromium and chromedriver.*scripts/system-packages\.sh"),
        chromium(),
    ):
        pass


def is_seen(element) -> bool:
    return element.is_displayed() and element.size["width"] > 0 and element.size["height"] > 0


@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (1100, "dark"), (360, "light"), (360, "dark")])
def test_verdict_findings_and_plots_are_seen_without_an_error_or_a_request(browser, audited, width, scheme):
    document, page = audited
    open_page(browser, page, width, scheme)
    assert said(browser) == []
    assert requested(browser) == [page.as_uri()]
    verdict = browser.find_element(By.ID, "verdict")
    assert (verdict.text, is_seen(verdict)) == ("FAIL", True)
    for row in document["findings"]:
        article = browser.find_element(By.ID, f"row-{row['number']}")
        assert is_seen(article)
        assert row["status"] in article.text
        if row["finding"]:
            for mark in ("token", "choice"):
                assert is_seen(article.find_element(By.CSS_SELECTOR, f"mark.{mark}")), (row["id"], mark)
    for plot in ("margin-plot", "position-plot"):
        points = browser.find_elements(By.CSS_SELECTOR, f"#{plot} .point path")
        assert len(points) == sum(row["finding"] is not None for row in document["findings"]) > 0
        assert all(is_seen(point) for point in points)
    lines = browser.find_elements(By.CSS_SELECTOR, "#margin-plot .threshold")
    assert len(lines) == 2
    assert lines[0].location["y"] > lines[1].location["y"]  # 4 times the noise lies above the noise
    assert 0 < browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_colours_of_token_and_choice_differ(browser, audited):
    open_page(browser, audited[1])
    colours = {
        browser.find_element(By.CSS_SELECTOR, f"#row-2 {part}").value_of_css_property("background-color")
        for part in ("mark.token", "mark.choice", ".texts span")
    }
    assert len(colours) == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser, audited, scheme):
    open_page(browser, audited[1], scheme=scheme)
    found = browser.execute_script("""
        const back = (e) => {
          for (; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour;
          }
        };
        return [...document.body.querySelectorAll("*")]
          .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.checkVisibility())
          .map((e) => [getComputedStyle(e)[e.closest("svg") ? "fill" : "color"], back(e), e.textContent]);
    """)
    assert len(found) > 100
    low = {(colour, behind): text for colour, behind, text in found if contrast(colour, behind) < LEAST_CONTRAST}
    assert low == {}
    assert len({behind for _, behind, _ in found}) >= 3


def contrast(*colours: str) -> float:
    """WCAG's ratio of two colours as `rgb(r, g, b)`."""
    luminances = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_a_point_leads_to_its_finding(browser, audited):
    open_page(browser, audited[1])
    browser.find_element(By.CSS_SELECTOR, "#margin-plot a[href='#row-3'] path").click()
    assert browser.execute_script("return document.querySelector(':target').id") == "row-3"
    assert 0 <= browser.execute_script("return document.getElementById('row-3').getBoundingClientRect().top") < 800


def test_rows_are_sorted_and_filtered(browser, audited):
    open_page(browser, audited[1])

    def numbers() -> list[int]:
        rows = browser.find_elements(By.CSS_SELECTOR, "#table tbody tr")
        return [int(row.find_element(By.TAG_NAME, "td").text) for row in rows if row.is_displayed()]

    assert numbers() == list(range(len(STATUSES)))
    margin = browser.find_element(By.XPATH, "//table[@id='table']//button[.='margin']")
    margin.click()
    assert numbers()[0] == 1  # a tie has the least margin
    ascending = numbers()
    margin.click()
    assert numbers()[:4] == ascending[:4][::-1]  # four rows have a margin; the others stay behind
    browser.find_element(By.CSS_SELECTOR, "#filter [value=exact]").click()
    assert {STATUSES[number] for number in numbers()} == set(STATUSES) - {"exact"}
    browser.find_element(By.CSS_SELECTOR, "#filter [type=search]").send_keys("row5")
    assert numbers() == [5]
    assert browser.find_element(By.CSS_SELECTOR, "#filter output").text == "1 of 8 rows"
    assert said(browser) == []


def test_without_javascript_all_is_there_but_sorting(browser, audited):
    document, page = audited
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(browser, page)
        assert not browser.find_elements(By.CSS_SELECTOR, "#table button")
        assert not browser.find_element(By.ID, "filter").is_displayed()
        assert len(browser.find_elements(By.CSS_SELECTOR, "#table tbody tr")) == len(STATUSES)
        assert all(is_seen(browser.find_element(By.ID, f"row-{row['number']}")) for row in document["findings"])
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_on_paper_it_is_light_and_no_row_or_column_is_cut_off(browser, audited):
    open_page(browser, audited[1], width=720, scheme="dark")
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        for name in ("Width", "Height"):
            seen, whole = browser.execute_script(f"""
                return [...document.querySelectorAll('.scroll')].map((e) => [e.client{name}, e.scroll{name}])
            """)[-1]
            assert whole <= seen
        behind = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
        assert contrast(behind, "rgb(0, 0, 0)") > 15
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_hostile_texts_do_nothing_in_a_browser(browser, audited):
    open_page(browser, audited[1])
    assert browser.title.startswith("FAIL: ")
    assert browser.execute_script("return document.scripts.length + document.styleSheets.length") == 2
    assert browser.execute_script("return document.images.length") == 0


def test_a_thousand_rows_are_shown_within_the_width_of_a_phone(browser, document, tmp_path):
    faulty = document["findings"][1]
    document["each_row"] = [{**document["each_row"][2], "id": f"a-rather-long-id-of-row-{k}"} for k in range(1000)]
    document["findings"] = [{**faulty, "number": k, "id": f"row{k}"} for k in range(0, 1000, 4)]
    document["rows"] = 1000
    page = tmp_path / "long.html"
    page.write_text(verdict_page(document), encoding="utf-8")
    open_page(browser, page, width=360)
    assert said(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") == 360
    assert len(browser.find_elements(By.CSS_SELECTOR, "#margin-plot .point")) == 250
    assert browser.execute_script("return document.querySelector('.tall').clientHeight") < 800


def test_an_error_and_a_request_would_be_noticed(browser, audited, tmp_path):
    html = audited[1].read_text(encoding="utf-8")
    spoiled = tmp_path / "spoiled.html"
    spoiled.write_text(html.replace("</body>", "<img src='data:,no'><script>undefined.x</script></body>"))
    open_page(browser, spoiled)
    assert any("TypeError" in line for line in said(browser))
    policy = re.search(r'<meta http-equiv="Content-Security-Policy".*?>', html)
    assert policy
    for content, wanted in ((html, "Content Security Policy"), (html.replace(policy[0], ""), "example.org")):
        spoiled.write_text(content.replace("</body>", "<img src='https://example.org/a.png'></body>"))
        open_page(browser, spoiled)
        assert any(wanted in line for line in said(browser)), wanted
    assert "https://example.org/a.png" in requested(browser)
