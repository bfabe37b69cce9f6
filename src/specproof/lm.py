"""A causal language model as one function: (ids, position ids, KV of this step) -> logits. And loading it."""

import copy
import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging as transformers_logging

from specproof.errors import ConfigError, UnsupportedModelError
from specproof.kv.transformers_cache import (
    ATTENTION_NAME,
    COMPILED_ATTENTION_NAME,
    RunningStep,
    StepCache,
)
from specproof.numerics.compiled import in_their_place
from specproof.numerics.opaque import at_most, during
from specproof.numerics.packed import PackedLinear, arrange, unpack
from specproof.numerics.quantized import quantized

HFModel = PreTrainedModel

DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")

# Model types whose every method is tested against the reference. Any other decoder is tried when an engine is made.
KNOWN_FAMILIES = frozenset(
    {
        "gemma3_text", "glm4", "gpt2", "gpt_neox", "llama", "mistral",
        "olmo2", "opt", "phi3", "qwen2", "qwen3", "smollm3",
    }
)  # fmt: skip

# Settings of a generation config that change which token is chosen, with the value that means "off".
_PROCESSORS = {
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "bad_words_ids": None,
    "sequence_bias": None, "suppress_tokens": None, "begin_suppress_tokens": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "guidance_scale": None,
}  # fmt: skip


class LM:
    """A Hugging Face causal LM. `forward` swaps its attention and packs its weights; `plain_forward` does not.

    vocab_size: rows of the output head (may exceed the tokenizer's entries). context: most positions, None if
    unbounded. eos_ids: the set from the generation config, of ids that the head has. own_attention: its attention is
    code of its own that takes no other function. windows: per layer, how many positions a query sees, None for all.
    head_ids: the ids that the columns of its logits stand for, if the head was cut; None: all, in order.
    Raises UnsupportedModelError for models whose state cannot be rolled back by position.
    """

    head_ids: tuple[int, ...] | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        _refuse(model)
        self.model = model.eval()
        config = model.config.get_text_config(decoder=True)
        self.family: str = model.config.model_type
        head: Any = model.get_output_embeddings()
        packed = isinstance(head, PackedLinear)
        self.vocab_size = head.out_features if packed else head.get_parameter("weight").shape[0]
        self.context = _context(config)
        self.bos_id: int | None = getattr(config, "bos_token_id", None)
        self.eos_ids = frozenset(token for token in _eos_ids(model) if 0 <= token < self.vocab_size)
        self.windows = layer_windows(model)
        self.checked = self.family in KNOWN_FAMILIES
        self.own_attention = not getattr(model, "_supports_attention_backend", False)
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        _warn_processors(model)

    @property
    def device(self) -> torch.device:
        """Where ids go and logits come from."""
        embedding: torch.nn.Module = self.model.get_input_embeddings()
        return embedding.get_parameter("weight").device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def dtype_name(self) -> str:
        """One of DTYPES."""
        return str(self.dtype).removeprefix("torch.")

    def with_head(self, ids: Sequence[int]) -> "LM":
        """The same model, all weights shared, but for a head that has only the rows `ids`, in this order."""
        head: Any = self.model.get_output_embeddings()
        index = torch.tensor(ids, device=head.weight.device)
        short = torch.nn.Linear(
            head.weight.shape[1], len(ids), head.bias is not None, head.weight.device, head.weight.dtype
        )
        with torch.no_grad():
            short.weight.copy_(head.weight[index])
            if head.bias is not None:
                short.bias.copy_(head.bias[index])
        other, model = copy.copy(self), copy.copy(self.model)
        for name, value in vars(model).items():  # its tables of modules and hooks are its own, what is in them is not
            if isinstance(value, dict):
                setattr(model, name, value.copy())
        model.set_output_embeddings(short.eval())
        other.model, other.head_ids = model, tuple(ids)
        return other

    def quantized(self) -> "LM":
        """The same model with linear layers of four bits, made anew; all other tensors are shared.

        Raises ConfigError where a layer cannot be quantized.
        """
        self.unpack()
        other = copy.copy(self)
        other.model = quantized(self.model)
        return other

    @torch.inference_mode()
    def forward(self, ids: Tensor, position_ids: Tensor, kv: StepCache, columns: Tensor) -> Tensor:
        """ids, position_ids: (b, n) long. columns: (m,) long, which of the n columns need logits. -> (b, m, V)."""
        arrange(self.model, kv.plan.numerics.packed)
        missing = kv.plan.numerics.least_tokens - ids.shape[1]
        if ids.shape[0] == 1 and missing > 0:  # filled with tokens that nobody keeps or sees
            ids, position_ids = pad(ids, (0, missing)), pad(position_ids, (0, missing))
        arguments = {self._cache_argument: kv, "attention_plan": kv.plan}
        if self._keeps_logits:
            arguments["logits_to_keep"] = columns
        running = (
            self._compiled(kv, ids) if kv.plan.numerics.compiled else _attention(self.model.config, ATTENTION_NAME)
        )
        with running, at_most(kv.plan.numerics.block):
            logits = self.model(input_ids=ids, position_ids=position_ids, use_cache=True, **arguments).logits
        return logits if self._keeps_logits else logits[:, columns]

    @contextmanager
    def _compiled(self, kv: StepCache, ids: Tensor) -> Iterator[None]:
        """Have the model's layers run compiled for one forward; the model is left as it was."""
        step = RunningStep(kv, ids.numel())
        layers = in_their_place(self.model, kv.plan.numerics.packed, step, ids)
        with during(step), layers, _attention(self.model.config, COMPILED_ATTENTION_NAME):
            yield

    @torch.inference_mode()
    def plain_forward(
        self,
        ids: Tensor,
        state: object = None,
        columns: Tensor | None = None,
        mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, object]:
        """The model as it came, with its own cache and attention: ids (b, n) -> logits (b, m, V), new state.

        columns: (m,) long, which of the n columns need logits; None: all. mask: (b, cached + n), 1 at real tokens;
        position_ids: (b, n), left out for a model that takes none. Both are needed for left-padded rows only.
        """
        unpack(self.model)
        arguments: dict[str, Any] = {self._cache_argument: state}
        if columns is not None and self._keeps_logits:
            arguments["logits_to_keep"] = columns
        if mask is not None:
            arguments["attention_mask"] = mask
        if position_ids is not None and self._takes_positions:
            arguments["position_ids"] = position_ids
        out = self.model(input_ids=ids, use_cache=True, **arguments)
        if out.get(self._cache_argument) is None:
            raise UnsupportedModelError(f"{type(self.model).__name__} keeps no KV cache")
        logits = out.logits if columns is None or self._keeps_logits else out.logits[:, columns]
        return logits, out[self._cache_argument]

    def unpack(self) -> None:
        """Give the model its weights back as they came, if forwards have packed them. The next forward packs again."""
        unpack(self.model)


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> LM:
    """Load a local folder or hub name. No remote code and no pickled weights unless asked for.

    Raises ConfigError for an unknown dtype or device, UnsupportedModelError for a model that cannot be decoded.
    """
    check_loadable(name_or_path, dtype, device if device_map is None else "cpu")
    path = Path(name_or_path).expanduser()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(path) if path.exists() else str(name_or_path),
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            use_safetensors=None if allow_pickle else True,
        )
    except Exception as error:  # whatever a foreign folder, its config or its code brings about
        reason = str(error).split("Model type should be one of")[0].strip()  # what follows names 200 classes
        if not allow_pickle and path.is_dir() and any(path.glob("*.bin")) and not any(path.glob("*.safetensors")):
            reason = (
                "its weights are pickled, which can run code when loaded; --allow-pickle (allow_pickle=True) does it"
            )
        raise UnsupportedModelError(f"cannot load {name_or_path}: {reason or type(error).__name__}") from error
    if device_map is None:
        try:
            model.to(device)
        except RuntimeError as error:  # too small for the model
            raise ConfigError(
                f"device {device!r} cannot be used: {str(error).splitlines()[0]}; name another, or cpu"
            ) from error
    return LM(model)


def check_loadable(name_or_path: str | Path, dtype: str, device: str) -> None:
    """What can be told before any weights are read. Raises ConfigError for an unknown dtype, device or folder."""
    if device.startswith("meta"):
        raise ConfigError("device 'meta' holds no weights; name cpu, or cuda")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; known: {', '.join(DTYPES)}")
    path = Path(name_or_path).expanduser()
    if not path.exists() and (path.is_absolute() or str(name_or_path).startswith((".", "~"))):
        raise ConfigError(f"there is no folder {name_or_path}")
    if path.exists() and not (path / "config.json").exists():
        raise ConfigError(f"{path} has no config.json; a model folder as written by save_pretrained is needed")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a PyTorch built without CUDA
        raise ConfigError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}; name another, or cpu"
        ) from error


def convert_gguf_weights(gguf: Path, out: Path) -> None:
    """Write the model of a GGUF file to folder `out`, as float32 safetensors."""
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain float32 by now, but still marked as quantized, and save_pretrained refuses those.
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
    model.save_pretrained(out)


def random_lm(family: str, seed: int, dtype: torch.dtype = torch.float64, **config: Any) -> LM:
    """A random model of a family, its weights spread out so that its choices depend on what it sees."""
    torch.manual_seed(seed)
    settings = AutoConfig.for_model(family, **config)
    settings.eos_token_id = settings.bos_token_id = None
    model: Any = AutoModelForCausalLM.from_config(settings, dtype=torch.float64)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "embed" in name else 0.3)
    return LM(model.to(dtype))


def hide_loading_bars() -> None:
    """Keep Transformers from drawing its own progress bars in this process."""
    transformers_logging.disable_progress_bar()


@contextmanager
def _attention(config, name: str) -> Iterator[None]:
    """Route the model's attention through one of ours for one forward; the model is left as it was."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def _refuse(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name} is an encoder-decoder; only decoder-only models are supported")
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError(f"{name} keeps a recurrent state, which cannot be rolled back to a position")
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(f"{name} has no language-model head; load it as a causal LM")
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(model.forward).parameters.values()):
        raise UnsupportedModelError(
            f"{name}.forward takes no keyword arguments for its attention; its layers cannot be reached"
        )


def layer_windows(model: PreTrainedModel) -> tuple[int | None, ...]:
    """Each layer's window, from the cache that Transformers itself would make for this model."""
    config = model.config.get_text_config(decoder=True)
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        raise UnsupportedModelError(f"{type(model).__name__} has chunked attention layers, which are not supported")
    layers = DynamicCache(config=config).layers
    for index, layer in enumerate(layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise UnsupportedModelError(
                f"{type(model).__name__}: layer {index} keeps its state in a {type(layer).__name__}, "
                "which cannot be rolled back to a position"
            )
    # Without sliding layers the list may be empty (layers are then made on first use): all are full.
    windows = tuple(getattr(layer, "sliding_window", None) for layer in layers)
    return windows or (None,) * config.num_hidden_layers


def _context(config) -> int | None:
    """Positions a row may take. LongRoPE: those of the short factors.

    Beyond them LongRoPE turns all positions of a forward by the longest row of the batch: a row would depend on its
    neighbours, and its keys on whether they were computed before or after it crossed that length.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):  # one set for all layers, or one for each type of layer
        if isinstance(parameters, dict) and parameters.get("rope_type") == "longrope":
            limits.append(parameters.get("original_max_position_embeddings"))
            limits.append(getattr(config, "original_max_position_embeddings", None))
    return min((limit for limit in limits if limit is not None), default=None)


def _eos_ids(model: PreTrainedModel) -> frozenset[int]:
    for config in (model.generation_config, model.config.get_text_config(decoder=True)):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()


def _warn_processors(model: PreTrainedModel) -> None:
    active = {
        name: value
        for name, off in _PROCESSORS.items()
        if (value := getattr(model.generation_config, name, off)) not in (off, None)
    }
    if active:
        named = ", ".join(f"{name}={value}" for name, value in active.items())
        warnings.warn(f"the generation config asks for {named}; not applied: decoding is plain greedy", stacklevel=3)
