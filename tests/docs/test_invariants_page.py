from pathlib import Path

from specproof.audit.document import invariants_page


def test_the_page_of_invariants_is_current():
    page = Path(__file__).parents[2] / "docs" / "invariants.md"
    assert page.read_text() == invariants_page(), "run: python -m specproof.audit.document > docs/invariants.md"
