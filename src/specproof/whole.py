"""Whole numbers that users give."""


def is_whole(value: object, least: int) -> bool:
    """An int of at least `least`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
