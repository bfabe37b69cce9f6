"""Which rows are attended together: the cuts that cost least, against all others."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from specproof.kv.groups import CALL, Part, cheapest_groups, lay_out

ROWS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 17), st.integers(0, 900)), max_size=7, unique_by=lambda row: row[0]
)


def cost(groups):
    return sum(
        CALL
        + len(lay_out(group).rows)
        * max(part.length for part in group)
        * max(part.start + part.length for part in group)
        for group in groups
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows=ROWS)
def test_no_other_cuts_cost_less(rows):
    parts = [Part(slot, 0, start, length, True) for slot, length, start in sorted(rows)]
    groups = cheapest_groups(parts)
    assert [part for group in groups for part in group] == parts
    every = [] if parts else [[]]
    for count in range(len(parts)):
        for cuts in combinations(range(1, len(parts)), count):
            edges = [0, *cuts, len(parts)]
            every.append([parts[a:b] for a, b in pairwise(edges)])
    assert cost(groups) == min(map(cost, every))


def test_a_row_that_drafts_much_is_attended_apart():
    parts = [Part(slot, 0, 150, length, True) for slot, length in enumerate([1, 1, 17, 1, 1, 1])]
    assert [len(group) for group in cheapest_groups(parts)] == [2, 1, 3]
    assert [len(group) for group in cheapest_groups([part._replace(length=1) for part in parts])] == [6]
