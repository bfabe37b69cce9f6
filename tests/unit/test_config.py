"""Options and the named methods."""

import pytest

from specproof import METHODS, EngineConfig
from specproof.config import ATTENTION_NAMES, COMMIT_NAMES, LAYOUT_NAMES, SCHEDULER_NAMES
from specproof.errors import ConfigError
from specproof.kv import LAYOUTS
from specproof.schedulers import SCHEDULERS
from specproof.verify.accept import COMMITS


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("specproof", ("slotted", "continuous", "per-row", True)),
        ("target-only", ("slotted", "continuous", "per-row", False)),
        ("eqspec", ("left-padded", "static", "per-row", True)),
        ("exspec", ("left-padded", "same-length", "per-row", True)),
        ("rollback", ("left-padded", "static", "batch-min", True)),
    ],
)
def test_a_method_is_a_combination_of_parts(method, parts):
    found = EngineConfig(method).parts
    assert (found.layout, found.scheduler, found.commit, found.drafts) == parts
    assert found.summary


def test_there_are_five_methods_and_specproof_is_the_default():
    assert set(METHODS) == {"specproof", "target-only", "eqspec", "exspec", "rollback"}
    assert EngineConfig().method == "specproof"


def test_each_part_can_be_chosen_separately():
    parts = EngineConfig("eqspec", layout="slotted").parts
    assert (parts.layout, parts.scheduler, parts.commit) == ("slotted", "static", "per-row")
    parts = EngineConfig("eqspec", scheduler="continuous", commit="batch-min").parts
    assert (parts.layout, parts.scheduler, parts.commit) == ("left-padded", "continuous", "batch-min")


def test_every_name_that_the_options_know_has_its_implementation():
    assert set(LAYOUT_NAMES) == set(LAYOUTS)
    assert set(SCHEDULER_NAMES) == set(SCHEDULERS)
    assert set(COMMIT_NAMES) == set(COMMITS)
    for method in METHODS.values():
        assert method.layout in LAYOUTS
        assert method.scheduler in SCHEDULERS
        assert method.commit in COMMITS


@pytest.mark.parametrize("name", ["method", "layout", "scheduler", "commit", "attention"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_listed(name):
    known = {
        "method": METHODS,
        "layout": LAYOUTS,
        "scheduler": SCHEDULERS,
        "commit": COMMITS,
        "attention": ATTENTION_NAMES,
    }[name]
    with pytest.raises(ConfigError, match=f"{name} is 'none-such'") as caught:
        EngineConfig(**{name: "none-such"})
    assert all(choice in str(caught.value) for choice in known)


NUMBERS = {"batch_size": 1, "num_draft_tokens": 0, "prefill_chunk": 1, "window": 1}


@pytest.mark.parametrize(("name", "least"), NUMBERS.items())
def test_a_number_that_cannot_work_is_refused_by_name(name, least):
    for value in (least - 1, 1.5, "4", True, None):
        with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be a whole number of at least {least}"):
            EngineConfig(**{name: value})
    assert getattr(EngineConfig(**{name: least}), name) == least


def test_a_window_smaller_than_the_batch_is_refused_where_there_is_a_window():
    with pytest.raises(ConfigError, match="window is 4"):
        EngineConfig("exspec", batch_size=8, window=4)
    with pytest.raises(ConfigError, match="window is 4"):
        EngineConfig(scheduler="same-length", batch_size=8, window=4)
    assert EngineConfig(batch_size=8, window=4).window == 4
    assert EngineConfig("exspec", batch_size=8, window=8).window == 8
