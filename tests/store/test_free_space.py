"""Room in a file: never given out twice, found again when it is free, and no longer than it must be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from parley.store.free_space import FreeSpace


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_against_a_list_of_bytes(steps: list[tuple[bool, int]]):
    space, taken = FreeSpace(), {}
    for giving, number in steps:
        if giving and taken:
            offset = sorted(taken)[number % len(taken)]
            space.give(offset, taken.pop(offset))
        elif not giving:
            gaps = [width for width in _gaps(taken, space.end) if width >= number]
            before, offset = space.end, space.take(number)
            assert all(offset + number <= other or other + length <= offset for other, length in taken.items())
            assert (space.end > before) == (not gaps)  # it grows only if it must
            taken[offset] = number
        assert space.end == max((offset + length for offset, length in taken.items()), default=0)
        assert space.free == space.end - sum(taken.values())
    again = FreeSpace(sorted(taken.items()))
    assert (again.end, again.free) == (space.end, space.free)


def _gaps(taken: dict[int, int], end: int) -> list[int]:
    edges, widths = 0, []
    for offset, length in sorted(taken.items()):
        widths.append(offset - edges)
        edges = offset + length
    return [*widths, end - edges]


def test_the_narrowest_gap_that_is_wide_enough_is_taken():
    space = FreeSpace([(10, 1), (14, 1), (40, 1)])
    assert [space.take(3), space.take(8), space.take(25), space.take(3)] == [11, 0, 15, 41]
