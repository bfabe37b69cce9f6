"""From a file of prompts to rows that a server can be asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specproof.errors import InputError, RequestError
from specproof.jobs.inputs import open_input, to_request
from specproof.jobs.row import InputRow
from specproof.request import Request
from specproof.served.collect import failed_line
from specproof.served.forms import Ask
from specproof.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Asks:
    """asked: rows for the server. refused: lines of rows that cannot be asked for. order: all ids, as in the file."""

    asked: Sequence[Ask]
    refused: Sequence[dict[str, Any]]
    order: Sequence[str]


def read_asks(prompts: str, tokenizer: Tokenizer, defaults: Request, chat: bool) -> Asks:
    """The rows of an input as `generate` reads it. A bad one is an error of that row only.

    Raises InputError for a file that cannot be read, or holds no row that can be asked for.
    """
    asked, refused, order = [], [], []
    with open_input(prompts) as source:
        for row in source.rows():
            name = f"line {row.line}" if row.id is None else row.id
            order.append(str(name))
            try:
                asked.append(_ask(row, name, tokenizer, defaults, chat))
            except RequestError as error:
                refused.append(failed_line(name, str(error)))
    if not asked:
        why = f": {refused[0]['error']}" if refused else ""
        raise InputError(f"{prompts} has no prompt to ask for{why}")
    return Asks(asked, refused, order)


def _ask(row: InputRow, name: str | int, tokenizer: Tokenizer, defaults: Request, chat: bool) -> Ask:
    request = to_request(row, tokenizer, defaults, chat)
    if not request.prompt_ids:
        if tokenizer.bos_id is None:
            raise RequestError(f"line {row.line}: the prompt is empty, and the tokenizer has no BOS to stand in for it")
        request = replace(request, prompt_ids=(tokenizer.bos_id,))
    as_it_stands = row.prompt is not None and not chat
    return Ask(name, request, row.prompt if as_it_stands and row.prompt else tokenizer.spell(request.prompt_ids))
