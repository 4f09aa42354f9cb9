"""Tandem repeats: every maximal one, and no other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from monotile.analysis.repeats import Repeat, repeats


def test_a_prelude_and_a_period_of_three() -> None:
    assert repeats([9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]) == [Repeat(1, 3, 7)]
    assert Repeat(1, 3, 7).count == 3


def test_nothing_repeats() -> None:
    assert repeats([]) == repeats([1]) == repeats([1, 2, 1]) == []


@given(st.lists(st.integers(0, 2), max_size=24))
@settings(max_examples=100, deadline=None)
def test_against_the_definition(x: list[int]) -> None:
    found = {(r.start, r.period): r.matches for r in repeats(x)}
    for period in range(1, len(x) // 2 + 1):
        start = 0
        while start + period < len(x):
            matches = 0
            while (
                start + matches + period < len(x)
                and x[start + matches] == x[start + matches + period]
            ):
                matches += 1
            assert found.pop((start, period), 0) == (matches if matches >= period else 0)
            start += matches + 1
    assert not found
