"""What a query sees, and the products: against one query at a time in plain loops."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specproof.kv.attention import AttentionPlan, Block, Blocks
from specproof.kv.cells import Cells
from specproof.numerics.rule import PLAIN, Numerics

KV_HEADS, GROUPS, D = 2, 3, 4


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    columns=st.integers(1, 4).flatmap(
        lambda m: st.lists(st.lists(st.integers(0, 9), min_size=m, max_size=m), min_size=1, max_size=3)
    ),
    pads=st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=3, max_size=3)),
    window=st.one_of(st.none(), st.integers(1, 12)),
)
def test_a_query_sees_its_rows_places_from_the_first_to_its_own_within_the_window(columns, pads, window):
    first = None if pads is None else [min(pad, *row) for pad, row in zip(pads, columns, strict=False)]
    length = 10
    block = Block(
        slice(None), slice(None), torch.tensor(columns), None if first is None else torch.tensor(first), length
    )

    mask = block.mask(window, torch.float64)

    assert mask.shape == (len(columns), 1, len(columns[0]), length)
    for r, row in enumerate(columns):
        for i, own in enumerate(row):
            low = max(0 if first is None else first[r], 0 if window is None else own - window + 1)
            expected = [0.0 if low <= place <= own else -math.inf for place in range(length)]
            assert mask[r, 0, i].tolist() == expected, (r, i)


def naive(query, keys, values, visible, scale, softcap):
    """One query, one head, one visible place at a time. query: (H, D). keys, values: (Hkv, capacity, D)."""
    out = torch.zeros_like(query)
    for head in range(query.shape[0]):
        kv = head // GROUPS
        scores = [float(query[head] @ keys[kv, place]) * (D**-0.5 if scale is None else scale) for place in visible]
        if softcap is not None:
            scores = [math.tanh(score / softcap) * softcap for score in scores]
        weights = [math.exp(score - max(scores)) for score in scores]
        for weight, place in zip(weights, visible, strict=True):
            out[head] += weight / sum(weights) * values[kv, place]
    return out


# Rows of the cells and their queries' columns: a decode block of uneven rows that skips row 1, then a chunk of row 1.
ROWS = [(0, [5, 6, 7]), (2, [2]), (3, [8, 9])]
CHUNK = (1, [3, 4, 5, 6])
TOKENS = [(row, column) for row, columns in [*ROWS, CHUNK] for column in columns]


def plan(kind: str, window: int | None, span: bool) -> AttentionPlan:
    """Queries of rows 0, 2 and 3 in one block, as (R, 3): short rows repeat their last; then row 1 alone."""
    queries = torch.tensor([[0, 1, 2], [0, 0, 0], [3, 3, 3], [4, 5, 5]])
    columns = torch.tensor([[5, 6, 7], [0, 0, 0], [2, 2, 2], [8, 9, 9]])
    order = [0, 1, 2, 6, 9, 10, 12, 13, 14, 15] if span else [0, 1, 2, 3, 6, 7, 9, 10, 11, 12]
    rows = slice(0, 4) if span else torch.tensor([0, 2, 3])
    keep = slice(None) if span else torch.tensor([0, 2, 3])
    blocks = [
        Block(rows, queries[keep].flatten(), columns[keep], None, 10),
        Block(slice(1, 2), torch.tensor([6, 7, 8, 9]), torch.tensor([CHUNK[1]]), None, 7),
    ]
    return AttentionPlan(blocks, torch.tensor(order), (None, window), kind)


@pytest.fixture
def states():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(1, KV_HEADS * GROUPS, len(TOKENS), D), normal(4, KV_HEADS, 12, D), normal(4, KV_HEADS, 12, D)


@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("scale", [None, 0.9])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("span", [True, False])
@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_a_ragged_forward_gives_each_token_its_own_attention(states, kind, span, window, scale, softcap):
    query, keys, values = states
    for layer, layer_window in ((0, None), (1, window)):
        out = plan(kind, window, span).attend(layer, query, keys, values, scale, softcap)
        assert out.shape == (1, len(TOKENS), KV_HEADS * GROUPS, D)
        for i, (row, column) in enumerate(TOKENS):
            low = 0 if layer_window is None else max(0, column - layer_window + 1)
            expected = naive(query[0, :, i], keys[row], values[row], range(low, column + 1), scale, softcap)
            assert (out[0, i] - expected).abs().max() < 1e-12, (
                f"token {i}: row {row}, place {column}, window {layer_window}"
            )


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_a_padded_rectangle_gives_each_token_its_own_attention(states, kind):
    """(b, n) tokens, all rows ending at one column, padding in front."""
    _, keys, values = states
    query = torch.randn(4, KV_HEADS * GROUPS, 2, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pads = [0, 3, 1, 7]
    columns = torch.tensor([[8, 9]] * 4)
    block = Block(slice(None), slice(None), columns, torch.tensor(pads), 10)
    out = AttentionPlan([block], slice(None), (None,), kind).attend(0, query, keys, values, None, None)
    assert out.shape == (4, 2, KV_HEADS * GROUPS, D)
    for row, pad in enumerate(pads):
        for i in range(2):
            expected = naive(query[row, :, i], keys[row], values[row], range(pad, 9 + i), None, None)
            assert (out[row, i] - expected).abs().max() < 1e-12, (row, i)


def test_sdpa_and_eager_agree_and_options_change_the_result(states):
    """Else the comparisons above could not tell them apart."""
    query, keys, values = states

    def attend(kind, window, scale, softcap):
        return plan(kind, window, True).attend(1, query, keys, values, scale, softcap)

    options = [(None, None, None), (3, None, None), (None, 0.9, None), (None, None, 0.5)]
    for option in options:
        assert (attend("sdpa", *option) - attend("eager", *option)).abs().max() < 1e-12
    for one, other in pairwise(options):
        assert (attend("sdpa", *one) - attend("sdpa", *other)).abs().max() > 1e-3


def test_masks_are_built_once_for_all_layers(states):
    query, keys, values = states
    one = plan("sdpa", 3, True)
    for layer in (0, 1, 0, 1):
        one.attend(layer, query, keys, values, None, None)
    assert len(one.masks) == 4  # two blocks, with and without a window


@st.composite
def blocks_side_by_side(draw):
    """The first row, each block's rows with their columns, how many tokens nobody keeps, a window."""
    blocks = []
    for _ in range(draw(st.integers(1, 3))):
        longest = draw(st.integers(1, 4))
        starts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
        blocks.append([list(range(start, start + draw(st.integers(1, longest)))) for start in starts])
    return draw(st.integers(0, 2)), blocks, draw(st.integers(0, 3)), draw(st.sampled_from([None, 3]))


@pytest.mark.parametrize("numerics", [PLAIN, Numerics(True, True, "added query rows")], ids=["plain", "rule"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=blocks_side_by_side())
def test_blocks_in_tensors_alone_keep_and_attend_as_the_plan_does(numerics, case):
    first, shapes, fillers, window = case
    blocks, index, order, base, low = [], [], [], 0, first
    for rows in shapes:
        m = max(map(len, rows))
        offsets = [len(index) + sum(map(len, rows[:i])) for i in range(len(rows))]
        queries = [offset + min(j, len(row) - 1) for offset, row in zip(offsets, rows, strict=True) for j in range(m)]
        run = queries == list(range(queries[0], queries[-1] + 1))
        blocks.append(
            Block(
                slice(low, low + len(rows)),
                slice(queries[0], queries[-1] + 1) if run else torch.tensor(queries),
                torch.tensor([[row[min(j, len(row) - 1)] for j in range(m)] for row in rows]),
                None,
                12,
            )
        )
        index += [(low + i) * 12 + place for i, row in enumerate(rows) for place in row]
        order += [base + i * m + j for i, row in enumerate(rows) for j in range(len(row))]
        base, low = base + len(queries), low + len(rows)
    whole = order == list(range(base))
    plan = AttentionPlan(blocks, slice(None) if whole else torch.tensor(order), (window,), "sdpa", numerics)
    generator = torch.Generator().manual_seed(base)

    def normal(heads, count):
        return torch.randn(1, heads, count, D, generator=generator, dtype=torch.float64)

    cells, twin, places, kept, at = Cells(), Cells(), (low + 1) * 12, len(index), torch.tensor(index)
    held = [normal(KV_HEADS, places)[0] for _ in range(2)]
    for one in (cells, twin):
        one.reshape(low + 1, 12)
        one.write(0, torch.arange(places), *held)
    query, key, value = (normal(heads, kept + fillers) for heads in (KV_HEADS * GROUPS, KV_HEADS, KV_HEADS))

    cells.write(0, at, key[0, :, :kept], value[0, :, :kept])
    expected = plan.attend(0, query[:, :, :kept], *cells.view(0), 0.7, None)
    found = plan.side_by_side(at, twin.rows, 12, kept + fillers)
    assert found is not None
    masks = tuple(plan.mask(i, 0, GROUPS, torch.float64, torch.device("cpu")) for i in range(len(blocks)))
    held = twin.of_rows(0, found.first, found.count)
    result = Blocks(*held, found.index, found.order, found.queries, masks).attend(query, key, value, 0.7)

    assert (found.first, found.count) == (first, low - first)
    assert result.shape == (1, kept + fillers, KV_HEADS * GROUPS, D)
    assert torch.equal(result[:, :kept], expected)
    assert torch.equal(cells.keys[0], twin.keys[0])
    assert torch.equal(cells.values[0], twin.values[0])
    assert len(result[0, :kept].flatten(1).unique(dim=0)) == kept


def test_rows_apart_are_not_side_by_side():
    for span in (True, False):
        assert plan("sdpa", None, span).side_by_side(torch.arange(len(TOKENS)), 4, 12, len(TOKENS)) is None
