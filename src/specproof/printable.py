"""Text that others wrote, made fit for a terminal, XML or a page: nothing in it is hidden, and nothing acts."""


def printable(text: str) -> str:
    """Control and format characters, unusual spaces and lone surrogates as escapes; a line's end as ↵ and the end."""
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\n":
        return "↵\n"
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
