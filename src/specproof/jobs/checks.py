"""Checks of single values. Each returns the value, or says what is wrong with it and what to do."""

from typing import Any

from specproof.whole import is_whole

SHOWN_DIGITS = 24


class BadLine(ValueError):
    """What is wrong with a line, and what to do."""


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadLine(f"{name} is {kind(value)}; give a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{name} has half of a surrogate pair (\\ud800 to \\udfff); write whole characters") from None
    return value


def a_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadLine(f"{name} is {kind(value)}; give a list")
    return value


def whole(name: str, value: Any, least: int) -> int:
    if not is_whole(value, least):
        shown = brief(value) if isinstance(value, int | float) else kind(value)
        raise BadLine(f"{name} is {shown}; give a whole number of at least {least}")
    return value


def brief(value: float) -> str:
    """A number as an error shows it: one of many digits by how many they are."""
    text = str(value)
    return text if len(text) <= SHOWN_DIGITS else f"a number of {len(text.lstrip('-'))} digits"


def kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
