"""Which numerics a model gets on this machine, and why."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from specproof.config import EngineConfig
from specproof.errors import ConfigError
from specproof.lm import LM
from specproof.numerics.artifact import compiler
from specproof.numerics.compilation import compile_now
from specproof.numerics.compiled import compiled_layers
from specproof.numerics.finding import Finding
from specproof.numerics.linear import linear_shape
from specproof.numerics.memory import recall
from specproof.numerics.packed import PackedLinear, is_packable, is_packed, why_not
from specproof.numerics.probe import probe, trials
from specproof.numerics.quantized import is_quantized
from specproof.numerics.rule import PLAIN, SMALL_BLOCK, Numerics

INVARIANT = Numerics(True, True, "each operation gave the same bits in every shape that was tried")
RULES = (INVARIANT, replace(INVARIANT, most_rows=SMALL_BLOCK))  # the fastest first


def choose_numerics(lm: LM, config: EngineConfig) -> Numerics:
    """With `compile`, the layers are compiled here. Raises ConfigError if what is asked for cannot be had."""
    cannot = _why_not_packed(lm)
    packed, quantized = config.pack and cannot is None, is_quantized(lm.model)
    if config.compile:
        compile_now(lm, config.attention, packed, config.parts.drafts)
    if config.numerics == "fast":
        return Numerics(False, packed, "asked for", config.compile)
    if packed and (left := _unpacked(lm)):
        why = f"the weight of {left[0]} cannot be packed: it is of a type of its own, has a hook, or is not on the CPU"
    elif packed or quantized:
        for rule in (replace(rule, packed=packed, compiled=config.compile) for rule in RULES):
            broken = next((finding for finding in probe_once(lm, config, rule) if not finding.holds), None)
            if broken is None:
                return rule
            why = f"{broken.op} depends on {'; '.join(broken.depends_on)}"
    else:
        why = cannot or "packing is off, and invariant products need packed weights"
    if config.numerics == "invariant":
        raise ConfigError(
            f"numerics cannot be invariant for this model here: {why}; --numerics auto or fast decodes it"
        )
    return Numerics(False, packed, why, config.compile)


def compare(lm: LM, config: EngineConfig) -> dict[str, Any]:
    """The choice, its reason, and findings measured now: in the rule's shapes (None: not packed), in ordinary ones."""
    layout, attention = config.parts.layout, config.attention
    chosen = choose_numerics(lm, config)
    ruled = _why_not_packed(lm) is None
    best = chosen if chosen.invariant else INVARIANT
    rule = [asdict(f) for f in probe(lm, attention, layout, best, _most(config))] if ruled else None
    ordinary = [asdict(f) for f in probe(lm, attention, layout, PLAIN, _most(config))]
    return {"kind": chosen.kind, "reason": chosen.reason, "rule": rule, "ordinary": ordinary}


def _most(config: EngineConfig) -> int:
    """Tokens of the largest forward, in steps, so that few configs need a probe of their own."""
    step = config.batch_size * (config.num_draft_tokens + 1)
    return -(-(config.prefill_chunk + step) // SMALL_BLOCK) * SMALL_BLOCK


def probe_once(lm: LM, config: EngineConfig, rule: Numerics) -> tuple[Finding, ...]:
    """Findings under the rule, to the first that fails; known ones while nothing that matters changed."""
    layout, attention, most = config.parts.layout, config.attention, _most(config)
    parts = sorted({type(module).__name__ for module in lm.model.modules() if linear_shape(module) is None})
    about = {"model": lm.model.config.to_json_string(), "parts": parts, "dtype": lm.dtype_name, "most": most}
    about |= {"layout": layout, "attention": attention, "rows": rule.most_rows, "packed": rule.packed}
    if rule.compiled:
        about["compiled"] = compiler(), compiled_layers(lm.model, rule.packed)[1].most_blocks
    return recall(about, lambda: _until_broken(trials(lm, attention, layout, rule, most)))


def _until_broken(findings: Iterator[Finding]) -> tuple[Finding, ...]:
    found = []
    for finding in findings:
        found.append(finding)
        if not finding.holds:
            break
    return tuple(found)


def _unpacked(lm: LM) -> list[str]:
    """Names of linear layers that stay as they are."""
    linear = ((name, module) for name, module in lm.model.named_modules() if linear_shape(module) is not None)
    return [name for name, module in linear if not isinstance(module, PackedLinear) and not is_packable(module)]


def _why_not_packed(lm: LM) -> str | None:
    devices = {parameter.device.type for parameter in lm.model.parameters()}
    if devices != {"cpu"}:
        return f"the model is on {', '.join(sorted(devices))}; the rule was made for PyTorch's CPU kernels"
    if (why := why_not(lm.dtype)) is not None:
        return why
    if is_packed(lm.model) or any(is_packable(module) for module in lm.model.modules()):
        return None
    return "the model has no linear layer that can be packed"
