"""The one rule by which target and draft choose a token."""

import pytest
import torch

from specproof.choice import NO_CHOICE, Ban, choose


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [5, 64, 1000, 49152])
def test_the_lowest_id_wins_an_exact_tie(dtype, size):
    """Wherever the tied logits lie: kernels compare them in blocks."""
    for first, second in ((0, 1), (0, size - 1), (size // 2 - 1, size // 2 + 1), (size - 2, size - 1)):
        logits = torch.full((3, size), -1.0, dtype=dtype)
        logits[1, first] = logits[1, second] = 2.0
        assert choose(logits).tolist() == [0, first, 0]


def test_a_banned_id_is_not_chosen_and_other_rows_are_not_touched():
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    before = logits.clone()
    assert choose(logits).tolist() == [1, 1, 1]
    assert choose(logits, [Ban(0, (1,)), Ban(2, (1, 2))]).tolist() == [2, 1, 0]
    assert choose(logits, [Ban(1, ())]).tolist() == [1, 1, 1]
    assert torch.equal(logits, before), "the logits were changed"


def test_choices_have_one_dimension_and_may_be_none_at_all():
    assert choose(torch.zeros(0, 7)).tolist() == []
    assert choose(torch.zeros(2, 7)).dtype == torch.long


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [-30.0, 0.0, 30.0])
def test_every_dtype_and_sign_is_chosen_as_torch_would(dtype, shift):
    """Halves are compared by their bits, which are in order for positive values only; many values are tied here."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randint(-5, 6, (40, 97), generator=generator) + shift).to(dtype)
    assert (logits == logits.max(-1, keepdim=True).values).sum() > 2 * len(logits), "no ties"
    assert choose(logits).tolist() == logits.argmax(-1).tolist()
    assert choose(logits[:, 5:60]).tolist() == logits[:, 5:60].argmax(-1).tolist(), "a slice"
    bans = [Ban(i, (int(logits[i].argmax()),)) for i in range(0, 40, 3)]
    banned = logits.clone()
    for ban in bans:
        banned[ban.row, ban.ids[0]] = -torch.inf
    assert choose(logits, bans).tolist() == banned.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_two_zeros_are_equal(dtype):
    assert choose(torch.tensor([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0], [-2.0, -1.0, -1.0]], dtype=dtype)).tolist() == [
        1,
        1,
        1,
    ]
    mixed = torch.tensor([[-3.0, -2.0, -2.0], [-1.0, -0.0, 0.0], [5.0, 0.0, 5.0]], dtype=dtype)
    assert choose(mixed).tolist() == [1, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("shift", [-30.0, 30.0])
def test_among_logits_that_are_not_numbers_there_is_no_choice(dtype, sign, shift):
    logits = torch.arange(97.0).repeat(3, 1) + shift
    logits[1, 40] = torch.copysign(torch.tensor(torch.nan), torch.tensor(float(sign)))
    logits[2, 5] = -torch.inf
    assert choose(logits.to(dtype)).tolist() == [96, NO_CHOICE, 96]
