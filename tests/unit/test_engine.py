"""The engine around its main path: transfers, records, reuse."""

import random

import pytest
import torch
from families import VOCAB, tiny_lm

from specproof import Engine, EngineConfig, Request
from specproof import choice as choice_module
from specproof.errors import ConfigError
from specproof.reference import decode_reference

# Everything that makes the host wait for the device.
TRANSFERS = ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")


def some_requests(count: int = 6, limit: int = 16) -> list[Request]:
    draw = random.Random(3)
    return [Request([draw.randrange(VOCAB) for _ in range(draw.choice([1, 4, 9, 25]))], limit) for _ in range(count)]


@pytest.mark.parametrize("method", ["specproof", "eqspec", "exspec", "rollback"])
def test_a_step_transfers_from_the_device_at_most_once_even_with_a_draft_model(method, monkeypatch):
    lm = tiny_lm("llama")
    draft = tiny_lm("llama", seed=7)
    engine = Engine(lm, draft, EngineConfig(method=method, batch_size=3, num_draft_tokens=4, prefill_chunk=8, window=4))
    transfers: list[str] = []
    for name in TRANSFERS:
        original = getattr(torch.Tensor, name)

        def counted(tensor, *args, original=original, name=name):
            transfers.append(name)
            return original(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    # As on a device: on a CPU the logits are read where they are.
    monkeypatch.setattr(choice_module, "_on_host", choice_module._anywhere)
    # The models' own forwards are not ours to count.
    original_forward = type(lm.model).forward

    def uncounted(*args, **kwargs):
        before = len(transfers)
        out = original_forward(*args, **kwargs)
        del transfers[before:]
        return out

    monkeypatch.setattr(type(lm.model), "forward", uncounted)
    engine.submit(some_requests())
    drafted, most = 0, 0
    while engine.statistics.finished < 6:
        transfers.clear()
        record = engine.step()
        drafted += sum(len(row.drafted) for row in record.rows)
        assert len(transfers) <= 1, f"step {record.index}: {transfers}"
        most = max(most, len(transfers))
    assert drafted > 20
    assert most == 1, "the count sees the transfer that there must be"


def test_observers_are_told_of_every_step_in_order_and_the_records_add_up():
    lm = tiny_lm("llama")
    engine = Engine(lm, lm, EngineConfig(batch_size=2, num_draft_tokens=3, prefill_chunk=8))
    records = []
    engine.observers.append(records.append)
    requests = some_requests(5)
    outputs = engine.generate(requests)
    assert [record.index for record in records] == list(range(len(records)))
    for i, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        name = str(i)
        rows = [row for record in records for row in record.rows if row.request_id == name]
        assert tuple(token for row in rows for token in row.emitted) == output.token_ids
        assert sum(row.num_accepted for row in rows) == output.num_accepted
        assert sum(len(row.drafted) for row in rows) == output.num_drafted
        assert len(rows) == output.num_steps == sum(output.acceptance_histogram)
        chunks = [chunk for record in records for chunk in record.prefilled if chunk.request_id == name]
        assert sum(chunk.length for chunk in chunks) == len(request.prompt_ids) - 1, "all but the pending token"
        assert [name in record.admitted for record in records].count(True) == 1
        assert [output in record.finished for record in records].count(True) == 1
    assert sum(record.refilled for record in records) == 3


def test_rows_stream_as_they_finish_and_generate_gives_input_order():
    lm = tiny_lm("llama")
    draw = random.Random(5)
    requests = [Request([draw.randrange(VOCAB) for _ in range(6)], limit) for limit in (20, 2, 9, 1)]
    engine = Engine(lm, None, EngineConfig(batch_size=4))
    assert [output.request_id for output in engine.stream(requests)] == ["3", "1", "2", "0"]
    assert [output.request_id for output in engine.generate(requests)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("layout", ["slotted", "left-padded"])
def test_memory_is_given_back_when_all_rows_have_finished_or_the_stream_is_closed(layout):
    lm = tiny_lm("llama")
    engine = Engine(lm, lm, EngineConfig(layout=layout, batch_size=3))
    requests = some_requests()
    reference = [decode_reference(lm, request).token_ids for request in requests]
    assert len({token for ids in reference for token in ids}) > 10
    engine.generate(requests)
    assert engine.layout.nbytes == 0
    stream = engine.stream(requests)
    next(stream)
    with pytest.raises(ConfigError, match="decoding already"):
        engine.submit(requests)
    stream.close()
    assert engine.layout.nbytes == 0
    assert [output.token_ids for output in engine.generate(requests)] == reference


def test_a_target_that_drafts_for_itself_is_accepted_always_even_where_rows_end_inside_a_block():
    lm = tiny_lm("llama")
    requests = some_requests(8, limit=30)
    ends = {
        decode_reference(lm, request).token_ids[at] for request, at in zip(requests, (3, 6, 9, 12) * 2, strict=True)
    }
    requests = [Request(r.prompt_ids, r.max_new_tokens, stop_token_ids=tuple(ends)) for r in requests]
    engine = Engine(lm, lm, EngineConfig(batch_size=3, num_draft_tokens=5))
    outputs = engine.generate(requests)
    assert {output.finish_reason for output in outputs} >= {"stop"}
    assert engine.statistics.acceptance_rate == 1.0
    assert all(output.num_accepted == output.num_drafted for output in outputs)
