"""One line of a trace file, whatever engine wrote it: prompt, output and rules, as far as the line has them.

Known forms, told apart by their keys:
- ours (`generate`): `id`, `token_ids`, `prompt_len`, `finish_reason`, `stop`; the prompt is in the job's input;
- vLLM: `request_id`, `prompt`, `prompt_token_ids`, `outputs: [{token_ids, text, finish_reason, stop_reason}]`, or flat;
- SGLang: `input_ids`, `output_ids`, `text`, `meta_info: {id, finish_reason: {type, matched}}`;
- Spec-Bench answers: `question_id`, `choices: [{turns: [text, ...]}]`, of which the first turn is audited;
- anything else with `prompt` and `text`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specproof.jobs.checks import BadLine, a_list, kind, text, whole
from specproof.jobs.row import OVERRIDE_KEYS, checked_rule

PROMPT_ID_KEYS = ("prompt_token_ids", "prompt_ids", "input_ids")
OUTPUT_ID_KEYS = ("token_ids", "output_token_ids", "output_ids")
TEXT_KEYS = ("text", "output", "output_text", "generated_text")
ID_KEYS = ("id", "request_id", "question_id")


@dataclass(frozen=True, slots=True)
class TraceLine:
    """What a line says. None: it says nothing of that. rules: fields of `Request` that it states for its row."""

    id: str | int | None
    prompt_ids: tuple[int, ...] | None
    prompt: str | None
    prompt_len: int | None
    token_ids: tuple[int, ...] | None
    text: str | None
    finish_reason: str | None
    stop: str | int | None
    error: str | None
    rules: Mapping[str, Any] = field(default_factory=dict)


def parse_trace_line(record: Mapping[str, Any]) -> TraceLine:
    """record: the line's JSON object, keys that are null left out. Raises BadLine."""
    merged = {**record, **_nested(record)}
    prompt, prompt_ids = merged.get("prompt"), _ids(merged, PROMPT_ID_KEYS)
    if isinstance(prompt, list):
        prompt, prompt_ids = None, tuple(whole(f"prompt[{i}]", token, 0) for i, token in enumerate(prompt))
    line = TraceLine(
        id=_own_id(merged),
        prompt_ids=prompt_ids,
        prompt=None if prompt is None else text("prompt", prompt),
        prompt_len=whole("prompt_len", merged["prompt_len"], 0) if "prompt_len" in merged else None,
        token_ids=_ids(merged, OUTPUT_ID_KEYS),
        text=next((text(key, merged[key]) for key in TEXT_KEYS if key in merged), None),
        **_finish(merged),
        error=_error(merged),
        rules=_rules(merged),
    )
    if line.token_ids is None and line.text is None and line.error is None:
        raise BadLine(f"it has no output; give one of {', '.join((*OUTPUT_ID_KEYS, *TEXT_KEYS))}")
    return line


def _nested(record: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM's `outputs`, SGLang's `meta_info` and the `choices` of Spec-Bench or OpenAI hold one level down."""
    found: dict[str, Any] = {}
    for key in ("outputs", "choices"):
        if key in record:
            parts = a_list(key, record[key])
            if len(parts) != 1 or not isinstance(parts[0], dict):
                raise BadLine(f"{key} has {len(parts)} entries; an audited row has exactly one output, an object")
            found |= {name: value for name, value in parts[0].items() if value is not None and name != "index"}
    if "turns" in found:
        turns = a_list("turns", found.pop("turns"))
        if not turns:
            raise BadLine("turns is empty; give at least one")
        found["text"] = turns[0]
    meta = record.get("meta_info")
    if isinstance(meta, dict):
        found |= {key: meta[key] for key in ("id", "finish_reason") if meta.get(key) is not None}
    return found


def _ids(record: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[int, ...] | None:
    given = [key for key in keys if key in record]
    if len(given) > 1:
        raise BadLine(f"it has {' and '.join(given)}; give one of them")
    if not given:
        return None
    key = given[0]
    return tuple(whole(f"{key}[{i}]", token, 0) for i, token in enumerate(a_list(key, record[key])))


def _own_id(record: Mapping[str, Any]) -> str | int | None:
    value = next((record[key] for key in ID_KEYS if key in record), None)
    if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
        raise BadLine(f"its id is {kind(value)}; give a string or a whole number")
    return value


def _finish(record: Mapping[str, Any]) -> dict[str, Any]:
    """finish_reason and stop (the id or string that matched), from our form, vLLM's or SGLang's."""
    reason, stop = record.get("finish_reason"), record.get("stop_reason")
    if isinstance(reason, dict):
        matched = reason.get("matched", stop)
        reason, stop = reason.get("type"), None if isinstance(matched, list) else matched
    if stop is None and not isinstance(record.get("stop"), list):
        stop = record.get("stop")
    if stop is not None and (not isinstance(stop, str | int) or isinstance(stop, bool)):
        raise BadLine(f"the stop that matched is {kind(stop)}; give the id or the string")
    if stop == "":
        raise BadLine("the stop that matched is an empty string, which would match everywhere; leave it out")
    return {"finish_reason": None if reason is None else text("finish_reason", reason), "stop": stop}


def _error(record: Mapping[str, Any]) -> str | None:
    """Why there is no output. An empty one (or false) is none: the row is judged."""
    error = record.get("error")
    if not error:
        return None
    return text("error", error) if isinstance(error, str) else json.dumps(error)


def _rules(record: Mapping[str, Any]) -> dict[str, Any]:
    """max_new_tokens (or max_tokens), min_new_tokens, stop strings, stop ids and ignore_eos that the line states."""
    rules = {key: record[key] for key in OVERRIDE_KEYS if key in record}
    if not isinstance(rules.get("stop"), list):
        rules.pop("stop", None)  # what matched, see _finish
    if "max_tokens" in record:
        rules.setdefault("max_new_tokens", record["max_tokens"])
    return {key: checked_rule(key, value) for key, value in rules.items()}
