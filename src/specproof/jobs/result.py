"""What a results file says about one row."""

import json
from typing import Any

from specproof.jobs.row import InputRow
from specproof.request import Output

# Line ends to many readers of text, though not to JSON: escaped, so that a line is a line to everyone.
ESCAPED_LINE_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})


def result_of(row_id: str | int | None, output: Output, seconds: float | None) -> dict[str, Any]:
    """The result of a row that the engine finished. seconds: from its admission to the end of its last step."""
    return {
        "id": row_id,
        "text": output.text,
        "token_ids": list(output.token_ids),
        "prompt_len": output.prompt_len,
        "shared": output.num_shared,
        "finish_reason": output.finish_reason,
        "stop": output.stop,
        "error": output.error,
        "steps": output.num_steps,
        "drafted": output.num_drafted,
        "accepted": output.num_accepted,
        "acceptance_histogram": list(output.acceptance_histogram),
        "seconds": None if seconds is None else round(seconds, 6),
    }


def refusal_of(row: InputRow, error: str) -> dict[str, Any]:
    """The result of a row that never reached the engine: its prompt has no known length."""
    output = Output(str(row.index), prompt_len=0, token_ids=(), text=None, finish_reason="error", error=error)
    return result_of(row.id, output, seconds=None) | {"prompt_len": None}


def to_line(result: dict[str, Any]) -> str:
    """One line of JSON, without its line end."""
    return json.dumps(result, ensure_ascii=False).translate(ESCAPED_LINE_ENDS)
