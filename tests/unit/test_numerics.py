"""The rule, the probe that says whether it holds, and the choice that follows."""

import json
from dataclasses import dataclass

import pytest
import torch
from bits import wide_lm
from families import tiny_lm
from torch import nn
from typer.testing import CliRunner

from specproof import Engine, EngineConfig
from specproof.cli.app import app
from specproof.errors import ConfigError
from specproof.numerics import opaque
from specproof.numerics.choose import INVARIANT, choose_numerics
from specproof.numerics.finding import Finding
from specproof.numerics.memory import recall
from specproof.numerics.packed import PackedLinear, why_not
from specproof.numerics.probe import probe
from specproof.numerics.rule import PLAIN, Numerics


def test_key_lengths_are_multiples_of_64_and_fill_a_block_of_512_up_to_192_or_from_384_on():
    lengths = [INVARIANT.key_length(n) for n in range(1, 3000)]
    assert all(n <= length < n + 192 for n, length in enumerate(lengths, start=1))
    assert {length % 512 for length in lengths} == {0, 64, 128, 192, 384, 448}
    assert sorted(lengths) == lengths
    assert [PLAIN.key_length(n) for n in (1, 256, 300)] == [1, 256, 300]
    assert [INVARIANT.query_rows(n) for n in (1, 3, 4, 5, 32, 33, 66, 68)] == [4, 4, 4, 5, 32, 36, 68, 68]
    assert PLAIN.query_rows(3) == 3


def test_the_probe_tries_every_key_length_and_block_that_the_engine_will_use():
    """Two key lengths and a block that the rule would never allow are named: the probe would have seen them."""

    @dataclass(frozen=True)
    class Careless(Numerics):
        def key_length(self, length: int) -> int:
            return -(-length // 64) * 64

        def query_rows(self, rows: int) -> int:
            return rows

    lm = wide_lm("llama", torch.float32)
    rule = Careless(True, True, "all multiples of 64")
    if why_not(torch.float32) or all(f.holds for f in probe(lm, "sdpa", "slotted", PLAIN, 64)):
        pytest.skip("the kernels of this machine give the same bits in ordinary shapes too")
    found = {finding.op: finding for finding in probe(lm, "sdpa", "slotted", rule, 64)}
    attention = next(finding for op, finding in found.items() if op.startswith("attention"))
    assert attention.depends_on[0] == "key length (256, 320)", attention  # the context is 640
    assert any(said.startswith("queries per call (1") for said in attention.depends_on), attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_names_every_operation_once_and_leaves_threads_and_random_numbers_alone(dtype):
    lm = wide_lm("gemma3_text", dtype)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    found = probe(lm, "sdpa", "left-padded", INVARIANT, 128)
    assert (torch.get_num_threads(), torch.get_rng_state().tolist()) == (threads, state.tolist())
    ops = [finding.op for finding in found]
    assert len(set(ops)) == len(ops)
    for part in (
        "linear 64 to 61",
        "linear 128 to 64",
        "RMSNorm 64",
        "GELU",
        "window 37",
        "whole forward, left-padded",
    ):
        assert any(part in op for op in ops), (part, ops)
    assert sum(op.startswith("attention") for op in ops) == 2


def test_an_operation_that_looks_at_other_tokens_is_named():
    class Mixing(nn.Module):
        def forward(self, states):
            return states + 1e-3 * states.mean(dim=1, keepdim=True)

    lm = wide_lm("llama", torch.float32)
    lm.model.model.layers[1].mlp.act_fn = Mixing()
    found = {finding.op: finding for finding in probe(lm, "sdpa", "slotted", INVARIANT, 64)}
    assert not found["Mixing 128"].holds
    assert not found["whole forward, slotted"].holds


def test_a_linear_layer_that_stays_as_it_was_is_named():
    lm = wide_lm("llama", torch.float32)
    lm.model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)
    chosen = choose_numerics(lm, EngineConfig())
    assert chosen.packed
    assert not chosen.invariant
    assert "layers.0.mlp.up_proj cannot be packed" in chosen.reason


def test_auto_is_fast_where_the_rule_does_not_hold_and_says_why():
    """48 floats are one vector and a tail, and PyTorch's SiLU rounds tails in another way."""
    lm = tiny_lm("llama", dtype=torch.float32)
    named = [f for f in probe(lm, "sdpa", "slotted", INVARIANT, 320) if not f.holds]
    engine = Engine(lm)
    assert engine.numerics.invariant == (not named)
    if named:
        assert named[0].op in engine.numerics.reason
        with pytest.raises(ConfigError, match=named[0].op):
            Engine(lm, config=EngineConfig(numerics="invariant"))


@pytest.mark.parametrize("dtype", [torch.float64])
def test_what_cannot_be_packed_is_fast_and_says_why(dtype):
    lm = wide_lm("llama", dtype)
    engine = Engine(lm)
    assert not engine.numerics.invariant
    assert not engine.numerics.packed
    assert "float64" in engine.numerics.reason
    with pytest.raises(ConfigError, match="float64"):
        Engine(lm, config=EngineConfig(numerics="invariant"))
    assert Engine(lm, config=EngineConfig(numerics="fast")).numerics.reason == "asked for"
    with pytest.raises(ConfigError, match="numerics is 'exact'; known: auto, invariant, fast"):
        EngineConfig(numerics="exact")


def test_findings_are_kept_on_disk_until_something_that_matters_changes(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPROOF_CACHE", str(tmp_path))
    calls = []

    def measure():
        calls.append(1)
        return (Finding("op", "shapes", ("number of rows (1)",), True),)

    def again(about):
        monkeypatch.setattr("specproof.numerics.memory._KNOWN", {})
        return recall(about, measure)

    assert again({"model": "a"}) == again({"model": "a"}) == (Finding("op", "shapes", ("number of rows (1)",), True),)
    assert len(calls) == 1
    again({"model": "b"})
    assert len(calls) == 2
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    again({"model": "a"})
    torch.set_num_threads(threads)
    assert len(calls) == 3
    for path in (tmp_path / "numerics").iterdir():
        path.write_text("{", encoding="utf-8")
    again({"model": "a"})
    assert len(calls) == 4
    monkeypatch.setenv("SPECPROOF_CACHE", "/proc/nowhere")
    again({"model": "c"})
    again({"model": "c"})
    assert len(calls) == 6  # no cache, no error


def test_env_numerics_prints_what_was_found(tmp_path):
    wide_lm("llama", torch.float32).model.save_pretrained(tmp_path)
    arguments = ["env", "--numerics", "--target", str(tmp_path), "--dtype", "bfloat16"]
    printed = CliRunner().invoke(app, [*arguments, "--json"])
    assert printed.exit_code == 0, printed.output
    found = json.loads(printed.stdout)["numerics"]
    assert found["kind"] in ("invariant", "fast")
    assert {finding["op"] for finding in found["ordinary"]} >= {"linear 64 to 128", "whole forward, slotted"}
    table = CliRunner().invoke(app, arguments)
    assert f"numerics: {found['kind']}" in table.stdout


def test_where_only_small_products_are_invariant_the_rule_makes_them_small(monkeypatch, tmp_path):
    lm, product, config = wide_lm("llama", torch.float32), opaque._PRODUCT, EngineConfig(numerics="invariant")
    if why_not(torch.float32) or choose_numerics(lm, config).most_rows == 64:
        pytest.skip("there are no large invariant products on this machine")
    monkeypatch.setenv("SPECPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr("specproof.numerics.memory._KNOWN", {})
    monkeypatch.setattr(opaque, "_PRODUCT", lambda rows, *rest: product(rows, *rest) * (1.5 if len(rows) > 64 else 1))
    assert choose_numerics(lm, config).most_rows == 64
    rows = torch.randn(200, 64)
    linear = next(module for module in lm.model.modules() if isinstance(module, PackedLinear))
    with opaque.at_most(64):
        assert torch.equal(linear.product(rows)[:5], linear.product(rows[:5]))
    assert not torch.equal(linear.product(rows)[:5], linear.product(rows[:5]))
