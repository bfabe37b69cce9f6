"""Tiny random models of every supported family, in float64, whose greedy outputs vary."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from specproof.lm import LM

VOCAB = 61
# Untied heads: a tied random model mostly repeats its last token, and would blind an equality test.
_SIZE = {
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}
_GQA = {**_SIZE, "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8}
_WINDOW = {"sliding_window": 7}

FAMILIES: dict[str, dict] = {
    "llama": _GQA,
    "qwen2": _GQA,
    "qwen3": _GQA,
    "glm4": {**_GQA, "partial_rotary_factor": 0.5, "pad_token_id": 0},
    "mistral": {**_GQA, **_WINDOW},
    "gemma3_text": {
        **_GQA,
        **_WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 8,
    },
    "opt": {**_SIZE, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt2": {
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 160,
    },
    "phi3": {**_GQA, "pad_token_id": 0, **_WINDOW},
    "olmo2": _GQA,
    "smollm3": {**_GQA, "pad_token_id": 0},
    "gpt_neox": {**_SIZE, "intermediate_size": 48},
}


def tiny_config(family: str, **overrides) -> PretrainedConfig:
    config = AutoConfig.for_model(family, **{**FAMILIES.get(family, _GQA), **overrides})
    config.eos_token_id = overrides.get("eos_token_id")
    config.bos_token_id = overrides.get("bos_token_id")
    return config


def tiny_lm(family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float64, **overrides) -> LM:
    """A random model; its weights are spread out, so that its choices depend on what it sees."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **overrides), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "embed" in name or "wte" in name or "wpe" in name else 0.3)
    return LM(model.to(dtype))
