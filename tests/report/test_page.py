"""The page as text: complete, nothing from outside, and nothing of what others wrote acts."""

import re
from html.parser import HTMLParser

import pytest
from page_subject import LIMIT, ODD_ID, SCRIPT, STATUSES

from specproof.printable import printable
from specproof.report.page import verdict_page

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Elements as (tag, attributes, text of the element and all in it)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict, list[str]]] = []
        self._open: list[int] = []
        self.feed(html)
        self.close()
        assert not self._open, "an element is not closed"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        if tag in ("td", "th", "dt", "dd"):
            self.handle_data(" ")
        assert self.elements[self._open.pop()][0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        for index in self._open:
            self.elements[index][2].append(data)

    def find(self, tag: str, **attributes: str) -> list[str]:
        """Texts of the elements of this tag with these attributes."""
        wanted = attributes.items()
        return ["".join(text) for name, has, text in self.elements if name == tag and wanted <= has.items()]


def words(page: Page, tag: str, **attributes: str) -> str:
    """The text of one element, with single spaces."""
    (text,) = page.find(tag, **attributes)
    return " ".join(text.split())


def test_the_subject_is_a_real_audit_with_exact_benign_faulty_and_unjudged_rows(document):
    assert [row["status"] for row in document["each_row"]] == STATUSES
    classes = {row["number"]: row["class"] for row in document["findings"]}
    assert (classes[1], classes[2], classes[3]) == ("tie", "accept-rule", "foreign-row")
    assert document["findings"][1]["finding"]["token_text"] == SCRIPT


def test_the_page_is_the_one_of_the_printed_document_so_that_a_saved_one_gives_it_again(audited):
    document, path = audited
    assert verdict_page(document) == path.read_text(encoding="utf-8")


def test_the_verdict_stands_with_its_counts_its_floor_and_the_reference(document):
    page = Page(verdict_page(document))
    assert words(page, "h1") == "FAIL"
    counts = " ".join(page.find("dl", **{"class": "counts"})[0].split())
    assert counts == "exact 2 benign 1 faulty 4 unexplained 0 unjudged 1"
    assert "7 of 7 100.0 % 64.6 % to 100.0 %" in words(page, "tr", id="floor")
    against = document["reference"]
    assert 0 < against["exact_match"]["hits"] < against["exact_match"]["n"] == 7
    low, high = against["exact_match"]["wilson95"]
    assert f"{against['exact_match']['hits']} of 7" in words(page, "tr", id="reference")
    assert f"{100 * low:.1f} % to {100 * high:.1f} %" in words(page, "tr", id="reference")
    equality = words(page, "section", id="equality")
    assert f"{against['rouge_l']:.4f}" in equality
    assert "cut-tail 1" in equality
    noise = words(page, "section", id="noise")
    assert document["noise"]["rule"] in noise
    assert f"{document['noise']['near_ties']} of {document['noise']['positions']} judged positions" in noise
    for shape in ("width-1", "batch-width-6", "batch", "alone"):
        assert f"{shape} {document['noise']['shapes'][shape]['n']} " in noise


def test_each_row_is_in_the_table_and_each_finding_has_its_evidence(document):
    page = Page(verdict_page(document))
    rows = [attributes["data-status"] for tag, attributes, _ in page.elements if "data-status" in attributes]
    assert rows == STATUSES
    for row in document["findings"]:
        text, found = words(page, "article", id=f"row-{row['number']}"), row["finding"]
        assert row["status"] in text
        if found is None:
            assert (row["termination"] or {"message": row["error"]})["message"] in text
            continue
        for said in (row["class"], found["why"][1:], f"id {found['token']}", f"id {found['choice']}"):
            assert said in text
        assert f"{found['index']} of {LIMIT}" in text
        assert f"{found['margin']:.3g} logits" in text
        assert f"[{', '.join(map(str, found['prefix_ids']))}]" in text
        for name, margin in found["controls"].items():
            assert (f"{name} – cannot" if margin is None else f"{name} {margin:.3g} its choice") in text


def test_a_control_that_flips_is_told_from_one_that_does_not(document):
    finding = document["findings"][1]["finding"]
    finding["controls"] |= {"width-1": -0.25, "batch": 0.5}
    text = words(Page(verdict_page(document)), "article", id="row-2")
    assert "width-1 −0.25 the candidate's: flips" in text
    assert "batch 0.5 its choice" in text


def test_what_others_wrote_is_shown_and_does_not_act(document):
    document["candidate"] = "<i>trace\udcff</i>.jsonl"
    html = verdict_page(document)
    html.encode("utf-8")
    assert not [character for character in html if not character.isprintable() and character != "\n"]
    page = Page(html)
    assert len(page.find("script")) == len(page.find("style")) == 1
    assert not {"b", "i", "img"} & {tag for tag, _, text in page.elements if ODD_ID[:3] in text or tag in ("i", "img")}
    assert SCRIPT in page.find("mark", **{"class": "token"})
    assert printable(ODD_ID) == "<b>row\\ud800\\x07</b>"
    assert words(page, "article", id="row-2").startswith("<b>row\\ud800\\x07</b> faulty")
    assert "<i>trace\\udcff</i>.jsonl" in words(page, "p", **{"class": "lead"})
    assert "out of memory <img src=x>" in words(page, "article", id="row-6")
    handlers = [name for _, attributes, _ in page.elements for name in attributes if name.startswith("on")]
    assert handlers == []


def test_nothing_on_the_page_comes_from_outside(document):
    html = verdict_page(document)
    page = Page(html)
    assert [a["content"] for tag, a, _ in page.elements if a.get("http-equiv") == "Content-Security-Policy"] == [POLICY]
    links = {a[name] for _, a, _ in page.elements for name in ("href", "src", "srcset", "action", "data") if name in a}
    assert all(link.startswith("#row-") or link == "data:," for link in links), links
    assert not re.search(r"url\(|@import|https?:|fetch\(", html.replace("http-equiv", ""))
    anchors = {a["id"] for _, a, _ in page.elements if "id" in a}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors


def test_each_point_of_both_plots_leads_to_its_finding(document):
    page = Page(verdict_page(document))
    points = [a["href"] for tag, a, _ in page.elements if a.get("class", "").startswith("point")]
    assert points == [f"#row-{row['number']}" for row in document["findings"] if row["finding"]] * 2


def test_a_thousand_rows_are_all_on_the_page(document):
    faulty = document["findings"][1]
    document["each_row"] = [{**document["each_row"][2], "id": f"row{k}"} for k in range(1000)]
    document["findings"] = [{**faulty, "number": k, "id": f"row{k}"} for k in range(0, 1000, 2)]
    document["rows"] = 1000
    page = Page(verdict_page(document))
    assert len([1 for _, attributes, _ in page.elements if "data-status" in attributes]) == 1000
    assert len([1 for tag, _, _ in page.elements if tag == "article"]) == 500


@pytest.mark.parametrize("reference", [True, False])
def test_a_verdict_without_findings_has_a_page_too(document, reference):
    for row in document["each_row"]:
        row |= {"status": "exact", "class": "exact"}
    document |= {"verdict": "pass", "findings": [], "terminations": {}, "notes": []}
    if not reference:
        document |= {"reference": None, "plain_against_plain": None}
    page = Page(verdict_page(document))
    assert words(page, "h1") == "PASS"
    assert "None: in every row" in words(page, "section", id="findings")
    assert len(page.find("figure")) == 0
    assert ("not measured" in words(page, "tr", id="floor")) is not reference


def test_a_trace_of_which_nothing_could_be_judged_has_a_page(audit, tmp_path):
    trace, path = tmp_path / "nothing.jsonl", tmp_path / "page.html"
    trace.write_text('{"id": "row0", "prompt_token_ids": [1], "error": "out of memory"}\n')
    result = audit("--html", path, trace=trace)
    assert result.exit_code == 2, result.output
    assert "NOTHING JUDGED: 1 row: 1 unjudged" in result.stdout
    page = Page(path.read_text(encoding="utf-8"))
    assert words(page, "h1") == "NOTHING JUDGED"
    assert "Not measured: no row could be judged." in words(page, "section", id="noise")
    assert "0 of 0" in words(page, "section", id="equality")
    assert "No output: out of memory" in words(page, "article", id="row-0")


def test_margins_that_are_no_finite_numbers_and_noise_that_is_zero_still_have_a_page(document):
    document["findings"][1]["finding"]["margin"] = float("inf")
    document["findings"][2]["finding"] |= {"margin": float("nan"), "noise": 0.0}
    text = verdict_page(document)
    assert "inf logits" in text
    assert "nan logits" in text
