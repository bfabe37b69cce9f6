"""Compiled layers: the same bits in every method, one compilation, and a model that is left as it came."""

import copy
import gc
import hashlib
import json
import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch
from bits import decode_bits, rows_that_differ, some_rows, wide_lm
from families import VOCAB, tiny_lm
from torch._dynamo.utils import counters
from typer.testing import CliRunner

from specproof import METHODS, Engine, EngineConfig, Request
from specproof.audit.auditor import audit_engine
from specproof.cli.app import app
from specproof.drafters import DraftRow, PromptLookup, Scripted
from specproof.errors import ConfigError
from specproof.kv.cells import Cells
from specproof.kv.transformers_cache import RunningStep
from specproof.lm import LM
from specproof.numerics import compilation, short
from specproof.numerics.artifact import compiler
from specproof.numerics.choose import INVARIANT
from specproof.numerics.kinds import kinds_of
from specproof.numerics.probe import probe
from specproof.numerics.short import ShortGraph
from specproof.reference import decode_reference

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="there is no C++ compiler (scripts/system-packages.sh installs g++)"
)
ROWS = some_rows([(1, 6), (60, 7), (150, 8), (23, 4), (124, 6)])
CASES = [
    ("llama", torch.float32),
    ("llama", torch.bfloat16),
    ("gemma3_text", torch.bfloat16),
    ("gpt2", torch.float32),
]


@pytest.fixture
def libraries(monkeypatch):
    """What is made for short steps meanwhile, each as it was asked for."""
    made, library = [], short.library
    monkeypatch.setattr(short, "library", lambda about, build: made.append(about) or library(about, build))
    return made


@pytest.fixture
def one_block(monkeypatch):
    """Fewer graphs, where a test does not need them: each takes seconds."""
    monkeypatch.setattr(compilation, "MOST_BLOCKS", 1)


@cache
def target(family: str, dtype: torch.dtype) -> LM:
    return wide_lm(family, dtype)


@cache
def alone(family: str, dtype: torch.dtype):
    found = decode_bits(target(family, dtype), ROWS, method="target-only", batch_size=1, compile=True)
    assert len({token for bits in found.values() for token in bits.output.token_ids}) > 8, "the outputs do not vary"
    return found


def drafts_of(found) -> Scripted:
    """Proposes what the target will choose, but for about every third token."""
    known = {name: (bits.output.prompt_len, bits.output.token_ids) for name, bits in found.items()}

    def script(row: DraftRow, max_tokens: int) -> list[int]:
        prompt_len, ids = known[row.request_id]
        at = len(row.token_ids) - prompt_len
        ahead = enumerate(ids[at : at + max_tokens], start=at)
        return [(token + ((5 * i * i + token) % 3 == 0)) % VOCAB for i, token in ahead]

    return Scripted(script)


@pytest.mark.parametrize(("family", "dtype"), CASES, ids=str)
def test_every_method_gives_the_bits_of_a_row_alone_and_compiles_nothing_more(family, dtype, libraries):
    lm, truth = target(family, dtype), alone(family, dtype)
    Engine(lm, PromptLookup(), EngineConfig(compile=True))  # with drafts, steps have more kinds of graphs
    compiled, accepted, drafted = (counters["stats"]["unique_graphs"], len(libraries)), 0, 0
    for number, (name, method) in enumerate(METHODS.items()):
        drafts = drafts_of(truth) if method.drafts else None
        config = {"method": name, "batch_size": (3, 8, 1)[number % 3], "num_draft_tokens": 2 + number}
        with torch._dynamo.config.patch(error_on_recompile=True):
            found = decode_bits(lm, ROWS, drafts, prefill_chunk=(100, 256)[number % 2], compile=True, **config)
        assert not rows_that_differ(found, truth), (family, dtype, config)
        accepted += sum(bits.output.num_accepted for bits in found.values())
        drafted += sum(bits.output.num_drafted for bits in found.values())
    assert 0 < accepted < drafted
    assert (counters["stats"]["unique_graphs"], len(libraries)) == compiled
    assert not any("forward" in vars(module) for module in lm.model.modules())


def test_many_query_heads_on_one_key_head_are_compiled_too():
    lm = wide_lm("llama", torch.bfloat16, num_attention_heads=16, num_key_value_heads=1)
    truth = decode_bits(lm, ROWS, method="target-only", batch_size=1, compile=True)
    assert len({token for bits in truth.values() for token in bits.output.token_ids}) > 8
    found = decode_bits(lm, ROWS, drafts_of(truth), batch_size=3, num_draft_tokens=4, compile=True)
    assert not rows_that_differ(found, truth)
    assert sum(bits.output.num_accepted for bits in found.values()) > 0


@pytest.mark.parametrize("drafts", [False, True])
def test_short_steps_attend_in_their_graph(monkeypatch, drafts):
    truth, called, records = alone("llama", torch.bfloat16), set(), []
    attend = RunningStep.attend

    def watched(self, *args):
        called.add(len(records))
        return attend(self, *args)

    config = EngineConfig("specproof" if drafts else "target-only", batch_size=3, num_draft_tokens=5, compile=True)
    engine = Engine(target("llama", torch.bfloat16), drafts_of(truth) if drafts else None, config)
    monkeypatch.setattr(RunningStep, "attend", watched)
    engine.observers.append(records.append)
    for output in engine.generate(ROWS[:3]):
        assert output.token_ids == truth[output.request_id].output.token_ids
    with_prompts = {record.index for record in records if record.prefilled}
    assert called <= with_prompts
    assert len(records) > len(with_prompts) + 2
    assert not drafts or any(len({len(row.drafted) for row in record.rows}) > 1 for record in records)


def test_a_graph_that_attends_to_other_rows_is_named_by_the_probe(monkeypatch):
    lm = target("llama", torch.bfloat16)
    numerics = replace(INVARIANT, compiled=True)

    def said():
        return {f.op: f for f in probe(lm, "sdpa", "slotted", numerics, 64) if "in its graph" in f.op}

    alone("llama", torch.bfloat16)  # skipped where there is nothing to prove
    Engine(lm, PromptLookup(), EngineConfig(compile=True))
    assert len(said()) == 1
    assert all(finding.holds for finding in said().values())
    of_rows = Cells.of_rows
    monkeypatch.setattr(Cells, "of_rows", lambda self, layer, at, count: of_rows(self, layer, max(0, at - 1), count))
    (finding,) = said().values()
    assert finding.depends_on == ("the graph, steps of tokens (4, 4, 15, 8, 63, 64, ...)",)


@pytest.mark.parametrize("pack", [True, False])
def test_fast_numerics_in_float32_give_the_references_tokens(pack, one_block):
    lm = tiny_lm("gemma3_text", dtype=torch.float32)
    references = [decode_reference(lm, request) for request in ROWS]
    assert len({token for reference in references for token in reference.token_ids}) > 8
    config = EngineConfig(batch_size=3, compile=True, numerics="fast", pack=pack)
    engine = Engine(lm, PromptLookup(), config)
    assert engine.numerics.compiled
    assert [output.token_ids for output in engine.generate(ROWS)] == [r.token_ids for r in references]


def test_a_compiled_model_is_given_back_as_it_came_copies_and_is_given_up(one_block):
    lm = tiny_lm("llama", dtype=torch.float32)
    modules, weights = dict(lm.model.named_modules()), copy.deepcopy(lm.model.state_dict())
    request = Request([5, 6, 7], max_new_tokens=12)
    before = decode_reference(lm, request)
    engine = Engine(lm, lm, EngineConfig(compile=True))  # the draft shares the layers
    for _ in range(2):
        assert engine.generate([request])[0].token_ids == before.token_ids
        assert decode_reference(lm, request) == before
    twin = copy.deepcopy(lm.model)
    engine.close()
    assert all(module is modules[name] for name, module in lm.model.named_modules())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in lm.model.state_dict().items())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert decode_reference(lm, request) == before, "the copy shares its layers"
    gone = weakref.ref(lm.model)
    del lm, engine, modules
    gc.collect()
    assert gone() is None


def test_weights_that_change_are_used_at_once():
    lm = tiny_lm("llama", dtype=torch.float32)
    engine = Engine(lm, config=EngineConfig("target-only", compile=True, numerics="fast"))
    first = engine.generate([Request([5, 6, 7], max_new_tokens=12)])[0].token_ids
    engine.close()
    with torch.no_grad():
        lm.model.model.layers[1].input_layernorm.weight.neg_()
        lm.model.model.layers[0].mlp.up_proj.weight.neg_()
    second = engine.generate([Request([5, 6, 7], max_new_tokens=12)])[0].token_ids
    assert second == decode_reference(lm, Request([5, 6, 7], max_new_tokens=12)).token_ids
    assert second != first


def test_layers_that_change_are_compiled_anew_by_the_next_engine():
    lm, request = tiny_lm("llama", dtype=torch.float32), Request([5, 6, 7], max_new_tokens=12)
    config = EngineConfig("target-only", compile=True, numerics="fast")
    engine = Engine(lm, config=config)
    first = engine.generate([request])[0].token_ids
    engine.close()
    for layer in lm.model.model.layers:
        layer.input_layernorm.variance_epsilon = 0.5
    second = Engine(lm, config=config).generate([request])[0].token_ids
    assert second == decode_reference(lm, request).token_ids
    assert second != first
    compiled = counters["stats"]["unique_graphs"]
    assert Engine(lm, config=config).generate([request])[0].token_ids == second
    assert counters["stats"]["unique_graphs"] == compiled


def test_an_engine_whose_compiled_layers_were_changed_says_so(one_block):
    lm, request = tiny_lm("llama", dtype=torch.float32), Request([5, 6, 7], max_new_tokens=12)
    config = EngineConfig("target-only", compile=True, numerics="fast")
    engine = Engine(lm, config=config)
    engine.generate([request])
    engine.close()
    first, second = lm.model.model.layers[:2]
    size = first.input_layernorm.weight.shape[0]
    changes = [
        (first.input_layernorm, "weight", torch.nn.Parameter(torch.randn(size, 3)[:, 1])),  # strided
        (first.input_layernorm, "variance_epsilon", 0.5),
        (first.mlp, "up_proj", torch.nn.Linear(size, first.mlp.up_proj.out_features)),  # has a bias
        (first.mlp.up_proj, "weight", second.mlp.up_proj.weight),  # packed apart, as it is shared
    ]
    for module, name, value in changes:
        before = getattr(module, name)
        setattr(module, name, value)
        with pytest.raises(ConfigError, match="have changed since; make another engine"):
            engine.generate([request])
        engine.close()
        setattr(module, name, before)
    hook = second.mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="its layers have hooks"):
        engine.generate([request])
    hook.remove()
    before = decode_reference(lm, request).token_ids
    assert engine.generate([request])[0].token_ids == before
    engine.close()
    setattr(*changes[0])
    assert Engine(lm, config=config).generate([request])[0].token_ids == decode_reference(lm, request).token_ids
    assert decode_reference(lm, request).token_ids != before


def test_code_on_disk_is_of_the_same_functions(libraries, one_block):
    config = EngineConfig("target-only", compile=True, numerics="fast")
    request = Request([5, 6, 7], max_new_tokens=12)

    class Activation(torch.nn.Module):
        def __init__(self, function) -> None:
            super().__init__()
            self.function = function

        def forward(self, states):
            return self.function(states)

    found = []
    for function in (lambda x: x.relu(), lambda x: x.cos()):
        lm = tiny_lm("llama", dtype=torch.float32)
        for layer in lm.model.model.layers:
            layer.mlp.act_fn = Activation(function)
        found.append(Engine(lm, config=config).generate([request])[0].token_ids)
        assert found[-1] == decode_reference(lm, request).token_ids
    assert found[0] != found[1]
    one, other = libraries
    assert one != other


def test_a_function_that_is_gone_is_like_no_other_whatever_lies_at_its_address():
    module = torch.nn.Linear(2, 2)
    module.function = lambda x: x  # type: ignore[assignment]
    one, other = kinds_of([module]), kinds_of([module])
    assert one == other
    del module.function
    gc.collect()
    assert one != other


@pytest.mark.parametrize("order", [("sdpa", "eager"), ("eager", "sdpa")])
def test_engines_of_both_kinds_of_attention_share_a_model(order):
    lm = wide_lm("llama", torch.float32)
    for attention in order:
        config = {"attention": attention, "compile": True, "prefill_chunk": 50}
        truth = decode_bits(lm, ROWS, method="target-only", batch_size=1, **config)
        assert len({token for bits in truth.values() for token in bits.output.token_ids}) > 8
        for batch_size in (2, 8):
            assert not rows_that_differ(decode_bits(lm, ROWS, batch_size=batch_size, **config), truth)


@pytest.mark.parametrize(("family", "dtype"), [("opt", torch.float32), ("olmo2", torch.bfloat16)], ids=str)
def test_other_families_are_invariant_when_compiled(family, dtype, one_block):
    lm, config = wide_lm(family, dtype), EngineConfig("target-only")
    if not Engine(lm, config=config).numerics.invariant:
        pytest.skip("not even as it is, on this CPU")
    assert Engine(lm, config=replace(config, compile=True)).numerics.invariant


def test_a_model_in_another_dtype_is_compiled_anew():
    lm, request = tiny_lm("llama", dtype=torch.bfloat16), Request([5, 6, 7], max_new_tokens=12)
    engine = Engine(lm, config=EngineConfig("target-only", compile=True, numerics="fast"))
    engine.generate([request])
    engine.close()
    wide = LM(lm.model.float())
    found = (
        Engine(wide, config=EngineConfig("target-only", compile=True, numerics="fast")).generate([request])[0].token_ids
    )
    assert found == decode_reference(wide, request).token_ids


@pytest.mark.parametrize("layout", ["slotted", "left-padded"])
def test_the_auditor_sees_a_compiled_engines_steps(layout):
    engine = Engine(
        target("llama", torch.bfloat16), PromptLookup(), EngineConfig(layout=layout, batch_size=3, compile=True)
    )
    audit = audit_engine(engine, ROWS)
    assert audit.clean, [str(violation) for violation in audit.first] or audit.crash
    assert audit.num_steps > 5


def test_another_process_need_not_compile_again(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPROOF_CACHE", str(tmp_path))
    request, config = Request([5, 6, 7], max_new_tokens=8), EngineConfig("target-only", compile=True, numerics="fast")
    built, build = [], ShortGraph._compile
    monkeypatch.setattr(ShortGraph, "_compile", lambda self, *args: built.append(self) or build(self, *args))

    def run() -> tuple[tuple[int, ...], int, int]:
        """Tokens; how many graphs for any step were traced, how many libraries built."""
        before = counters["stats"]["unique_graphs"], len(built)
        engine = Engine(tiny_lm("llama", dtype=torch.float32), config=config)
        ids = engine.generate([request])[0].token_ids
        return ids, counters["stats"]["unique_graphs"] - before[0], len(built) - before[1]

    ids, *made = run()
    assert made == [1, 1]
    assert run() == (ids, 0, 0)
    for kind, again in (("bin", (1, 0)), ("so", (0, 1))):
        (saved,) = (tmp_path / "compiled").glob(f"*.{kind}")
        whole = saved.read_bytes()
        middle = len(whole) // 2
        changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        foreign = hashlib.sha256(b"of another PyTorch").hexdigest().encode() + b"\nof another PyTorch"
        for damaged in (b"no code", changed, whole[:1000], foreign):
            saved.write_bytes(damaged)
            assert run() == (ids, *again)
            assert saved.read_bytes() != damaged


def test_what_cannot_be_compiled_is_one_clear_error(monkeypatch):
    lm = tiny_lm("llama", dtype=torch.float32)
    hook = lm.model.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="cannot be compiled here: its layers have hooks"):
        Engine(lm, config=EngineConfig(compile=True))
    hook.remove()
    monkeypatch.setattr("specproof.numerics.compiled.compiler", lambda: None)
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler; install g\+\+"):
        Engine(lm, config=EngineConfig(compile=True))
    monkeypatch.undo()

    class Odd(torch.nn.Module):
        def forward(self, states):
            return states if states.sum() > 0 else -states  # cannot be traced: it asks for a value

    lm.model.model.layers[1].mlp.act_fn = Odd()
    with pytest.raises(ConfigError, match=r"cannot be compiled here: .*; leave compile out to decode it"):
        Engine(lm, config=EngineConfig(compile=True))
    assert not any("forward" in vars(module) for module in lm.model.modules())
    assert Engine(lm, config=EngineConfig(numerics="fast")).compilation is None


def test_generate_says_what_compiling_cost_and_when_it_pays(tmp_path, smollm2_folder):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("one two three one two three one\n")
    arguments = ["generate", str(prompts), "-o", str(out), "--compile", "--numerics", "fast", "--max-new-tokens", "4"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert "specproof: compiled in " in result.stderr
    summary = json.loads(result.stdout)
    assert summary["compile"] is True
    found = summary["compilation"]
    assert found["seconds"] > 0
    assert found["rows"] == 8
    saved = found["plain_step_seconds"] - found["step_seconds"]
    assert (found["break_even_tokens"] is None) == (saved <= 0)
    assert not found["paid"]  # 4 tokens never pay
    assert json.loads(out.read_text())["finish_reason"] == "length"
