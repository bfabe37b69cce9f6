"""What the whole test suite shares."""

from pathlib import Path

import pytest

from specproof.embedded import default_model_folder


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded model, converted at most once per machine."""
    return default_model_folder()
