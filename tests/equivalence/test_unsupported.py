"""Decoders of other families are tried when an engine is made: exact, or refused by name and with the reason.

Which of the two may differ between versions of Transformers, and is checked for the one that the tables were made with.
In every version a model that is not refused is decoded exactly.
"""

import json
import re

import pytest
import torch
import transformers
from families import VOCAB
from helpers import assert_equal, decode, ragged_steps, vary
from probes import config, rows, solo
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

from specproof import Engine
from specproof.drafters import Scripted
from specproof.errors import ConfigError, UnsupportedModelError
from specproof.kv import attention
from specproof.lm import KNOWN_FAMILIES, LM, load_model
from specproof.support import require_supported

SAME_VERSION = transformers.__version__.startswith("5.24.")
SIZE = {
    "vocab_size": VOCAB, "tie_word_embeddings": False, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 160, "pad_token_id": 0,
}  # fmt: skip
GQA = {**SIZE, "num_key_value_heads": 2, "intermediate_size": 48}
ROTARY = {**GQA, "head_dim": 8}
MOE = {**ROTARY, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "experts_implementation": "eager"}
GPT = {"vocab_size": VOCAB, "tie_word_embeddings": False, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 160}
HALF = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
MLA = {
    **MOE, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 1,
}  # fmt: skip
del MLA["head_dim"]

SUPPORTED = {
    "gemma": ROTARY,
    "gemma2": {**ROTARY, **HALF, "query_pre_attn_scalar": 8},  # soft caps in attention and head
    "cohere": GQA,
    "cohere2": {**ROTARY, **HALF},
    "starcoder2": {**GQA, "sliding_window": 7},
    "granite": GQA,
    "olmo": GQA,
    "olmo3": {**GQA, **HALF},
    "ernie4_5": ROTARY,
    "exaone4": {**ROTARY, **HALF},
    "phi": GQA,
    "gptj": {**GPT, "rotary_dim": 4},
    "codegen": {**GPT, "rotary_dim": 4},
    "gpt_bigcode": GPT,  # one KV head
    "mixtral": {**MOE, "num_local_experts": 4, "sliding_window": 7},
    "qwen2_moe": {**MOE, "num_experts": 4, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**MOE, "num_experts": 4},
    "deepseek_v3": MLA,  # keys and values of different size
    "jetmoe": {
        **GQA,
        "kv_channels": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_implementation": "eager",
    },
}
REFUSED = {
    "stablelm": (GQA, "StableLmAttention does not pass keyword arguments on to its attention"),
    "gpt_oss": ({**MOE, **HALF, "num_local_experts": 4}, "GptOssAttention uses s_aux in its attention"),
    "doge": ({**GQA}, "DogeAttention brings an attention mask of its own"),
    "bloom": ({**GPT, "hidden_size": 32}, "'bloom' .* its attention is code of its own"),
    "mpt": (
        {"vocab_size": VOCAB, "d_model": 32, "n_heads": 4, "n_layers": 2},
        "'mpt' .* its attention is code of its own",
    ),
    "falcon": (SIZE, "'falcon' .* its attention is code of its own"),
    "gpt_neo": (
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
        },
        "'gpt_neo' .* its attention is code of its own",
    ),
    "bert": (SIZE, "BertLMHeadModel keeps no KV cache"),
    "openai-gpt": (GPT, "OpenAIGPTLMHeadModel keeps no KV cache"),
    "llama4_text": (
        {**ROTARY, "intermediate_size_mlp": 48, "num_local_experts": 2},
        "Llama4ForCausalLM has chunked attention layers",
    ),
    "mamba": (
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2},
        "MambaForCausalLM keeps a recurrent state",
    ),
    "mamba2": (
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 1,
        },
        "Mamba2ForCausalLM keeps a recurrent state",
    ),
    "rwkv": (
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2},
        "RwkvForCausalLM keeps a recurrent state",
    ),
    "jamba": ({**GQA, "num_experts": 2}, "JambaForCausalLM keeps a recurrent state"),
    "falcon_h1": (
        {**GQA, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
        "FalconH1ForCausalLM keeps a recurrent state",
    ),
    "bamba": ({**GQA, "mamba_n_heads": 4, "mamba_d_head": 16}, "BambaForCausalLM keeps a recurrent state"),
    "recurrent_gemma": ({**GQA, "lru_width": 32}, "RecurrentGemmaForCausalLM keeps a recurrent state"),
    "qwen3_next": (
        {
            **MOE,
            "num_experts": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "shared_expert_intermediate_size": 24,
        },
        "Qwen3NextForCausalLM keeps a recurrent state",
    ),
    "lfm2": (
        {**GQA, "layer_types": ["conv", "full_attention"]},
        "Lfm2ForCausalLM: layer 0 keeps its state in a .*, which cannot be rolled back",
    ),
}


def tiny(family: str, options: dict) -> PreTrainedModel:
    if family not in KNOWN:
        pytest.skip(f"this version of Transformers has no {family}")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options), dtype=torch.float64)
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "embed" in name or "wte" in name or "wpe" in name else 0.3)
    return model


def refusal(model: PreTrainedModel) -> str | None:
    try:
        require_supported(LM(model), "sdpa")
    except UnsupportedModelError as error:
        return str(error)
    return None


@pytest.mark.parametrize("family", SUPPORTED)
def test_a_family_that_passes_its_trial_is_decoded_exactly(family):
    assert family not in KNOWN_FAMILIES
    model = tiny(family, SUPPORTED[family])
    why = refusal(model)
    if why is not None and not SAME_VERSION:
        pytest.skip(f"Transformers {transformers.__version__}: {why}")
    assert why is None, why
    exact(LM(model))


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_is_not_supported_is_refused_with_its_reason(family):
    options, expected = REFUSED[family]
    model = tiny(family, options)
    why = refusal(model)
    if why is None and not SAME_VERSION:
        exact(LM(model))
        pytest.skip(f"Transformers {transformers.__version__} has made it exact")
    assert why is not None, f"{family} is not refused"
    assert not SAME_VERSION or re.search(expected, why), why
    with pytest.raises(UnsupportedModelError):
        Engine(model, None, config("target-only"))
    with pytest.raises(UnsupportedModelError):
        Engine(LM(tiny("llama", ROTARY)), model, config("specproof"))


def exact(lm: LM) -> None:
    """The engine gives what the model alone gives, in both layouts, in ragged steps."""
    requests = rows((1, 3, 11, 20), limit=16)
    truth = vary(solo(lm, requests))
    known = {r.request_id: (len(r.prompt_ids), t.token_ids) for r, t in zip(requests, truth, strict=True)}

    def script(row, k):
        at, ids = len(row.token_ids) - known[row.request_id][0], known[row.request_id][1]
        return [(t + (j >= len(row.token_ids) % 5)) % VOCAB for j, t in enumerate(ids[at : at + k])]

    for method in ("specproof", "eqspec"):
        for kind in ("sdpa", "eager"):
            options = {"batch_size": 3, "prefill_chunk": 5, "attention": kind}
            outputs, records, engine = decode(lm, Scripted(script), config(method, **options), requests)
            assert ragged_steps(records) > 1
            assert engine.statistics.accepted > 10
            assert_equal(outputs, truth, (lm.family, method, kind))


def test_an_encoder_decoder_is_refused_by_name_as_a_model_and_as_a_folder(tmp_path):
    options = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **options))
    with pytest.raises(UnsupportedModelError, match="T5ForConditionalGeneration is an encoder-decoder"):
        Engine(model, None, config("target-only"))
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"cannot load .*T5Config") as caught:
        load_model(tmp_path)
    assert len(str(caught.value)) < 400, "a list of all classes is no reason"


def test_a_model_without_a_language_model_head_is_refused():
    with pytest.raises(UnsupportedModelError, match="LlamaModel has no language-model head"):
        Engine(tiny("llama", ROTARY).model, None, config("target-only"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "has no config.json"),
        ("{", "cannot load"),
        ("{}", "cannot load"),
        (json.dumps({"model_type": "no_such_family"}), "cannot load .*no_such_family"),
        (json.dumps({"model_type": "llama", "vocab_size": "many"}), "cannot load"),
        (
            json.dumps({"model_type": "llama", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 1}),
            "cannot load .*safetensors",
        ),
    ],
)
def test_a_folder_that_holds_no_model_is_refused_in_words(tmp_path, content, why):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises((UnsupportedModelError, ConfigError), match=why):
        load_model(tmp_path)


def test_weights_that_are_torn_or_pickled_are_refused(tmp_path):
    model = tiny("llama", ROTARY)
    model.save_pretrained(tmp_path)
    assert load_model(tmp_path, dtype="float64").vocab_size == VOCAB
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UnsupportedModelError, match="cannot load"):
        load_model(tmp_path)
    weights.unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"cannot load .*pickled.*--allow-pickle"):
        load_model(tmp_path)


def test_a_device_that_is_not_there_is_named(tmp_path):
    tiny("llama", ROTARY).save_pretrained(tmp_path)
    missing = "cuda:7" if torch.cuda.is_available() else "cuda"
    for device in (missing, "toaster"):
        with pytest.raises(ConfigError, match=f"device '{device}' cannot be used"):
            load_model(tmp_path, device=device)


# --- the trial itself ------------------------------------------------------------------------------------------------


def _counted(self, ids, position_ids, kv, columns, forward=LM.forward):
    return forward(self, ids, torch.arange(position_ids.shape[1]).expand_as(position_ids), kv, columns)


def _off_by_one(self, ids, position_ids, kv, columns, forward=LM.forward):
    moved = position_ids.clone()
    moved[:, moved.shape[1] // 2 :] += 1
    return forward(self, ids, moved, kv, columns)


def _mask(change):
    def mask(self, window, dtype, built=attention.Block.mask):
        return change(self, window, dtype, built)

    return mask


FAULTS = {
    "positions counted along the batch": (LM, "forward", _counted),
    "positions off by one in half of the rows": (LM, "forward", _off_by_one),
    "an undeclared window": (attention.Block, "mask", _mask(lambda self, w, dtype, built: built(self, 6, dtype))),
    "a window one too wide": (
        attention.Block,
        "mask",
        _mask(lambda self, w, dtype, built: built(self, w and w + 1, dtype)),
    ),
    "a linear bias": (
        attention.Block,
        "mask",
        _mask(
            lambda self, w, dtype, built: (
                built(self, w, dtype) - 0.1 * (self.columns[:, None, :, None] - torch.arange(self.length))
            )
        ),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_the_trial_catches_a_model_that_differs_and_passes_one_that_only_rounds(fault, dtype, monkeypatch):
    lm = LM(tiny("mistral", {**ROTARY, "sliding_window": 7}).to(dtype))
    lm.checked = False
    if fault is None:
        require_supported(lm, "sdpa")
        return
    owner, name, replacement = FAULTS[fault]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(UnsupportedModelError, match=r"differ from those of the row alone by .* standard deviations"):
        require_supported(lm, "sdpa")


def test_a_fault_of_one_layout_alone_is_caught(monkeypatch):
    lm = LM(tiny("llama", ROTARY))
    lm.checked = False

    def shared_length(self, ids, position_ids, kv, columns, forward=LM.forward):
        if ids.shape[0] > 1:  # the rectangle only: every row gets the positions of the first
            position_ids = position_ids[:1].expand_as(position_ids)
        return forward(self, ids, position_ids, kv, columns)

    monkeypatch.setattr(LM, "forward", shared_length)
    with pytest.raises(UnsupportedModelError, match="left-padded layout"):
        require_supported(lm, "sdpa")
