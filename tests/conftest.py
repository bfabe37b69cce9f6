"""What the whole test suite shares."""

from pathlib import Path

import pytest

from specproof.embedded import default_model_folder
from specproof.numerics import packed


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded model, converted at most once per machine."""
    return default_model_folder()


@pytest.fixture(autouse=True, scope="module")
def models_as_they_came():
    """Models that a module has packed and keeps would make every forward of those that are not packed look at them."""
    yield
    for model in list(packed._PACKED):
        packed.unpack(model)
