"""Options of the engine, and the named methods: combinations of parts, as data."""

from dataclasses import dataclass

from specproof.errors import ConfigError
from specproof.whole import is_whole

LAYOUT_NAMES = ("slotted", "left-padded")
SCHEDULER_NAMES = ("continuous", "static", "same-length")
COMMIT_NAMES = ("per-row", "batch-min")
ATTENTION_NAMES = ("sdpa", "eager")
NUMERICS_NAMES = ("auto", "invariant", "fast")


@dataclass(frozen=True, slots=True)
class Method:
    """A combination of layout, scheduler and commit rule (and whether it drafts at all)."""

    layout: str
    scheduler: str
    commit: str
    drafts: bool
    summary: str


METHODS = {
    "specproof": Method(
        "slotted",
        "continuous",
        "per-row",
        True,
        "flat ragged forward, nothing padded or moved, free slots refilled at once",
    ),
    "target-only": Method("slotted", "continuous", "per-row", False, "no drafts: one token per row and step"),
    "eqspec": Method(
        "left-padded", "static", "per-row", True, "the paper's EQSPEC: unpad, append, repad after each step"
    ),
    "exspec": Method(
        "left-padded", "same-length", "per-row", True, "the paper's EXSPEC: batches rows of equal length from a pool"
    ),
    "rollback": Method("left-padded", "static", "batch-min", True, "all rows cut to the batch's smallest acceptance"),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to decode. Nothing here changes what is decoded, but that `compile`, `numerics` and `pack` round otherwise.

    Of two tokens that are nearly as likely, the other may then be chosen.

    method: a name from METHODS; `layout`, `scheduler` and `commit` override its parts one by one.
    batch_size: rows decoded together.
    num_draft_tokens: K, most draft tokens per row and step.
    adaptive: draft only what is expected to pay (see specproof.pace); False: as many as the drafter finds, up to K.
    draft_head: how many ids a draft model chooses among, the most frequent ones; None: all.
    draft_bits: 4: a draft model drafts with weights rounded to four bits (see specproof.numerics.quantized); None: with
    its own.
    window: rows kept in the pool of the same-length scheduler.
    sort_by_length: admit short prompts first (outputs keep the input order).
    prefill_chunk: most prompt tokens computed in one forward.
    attention: "sdpa" or "eager".
    numerics: "invariant": a row's logits are the same bits whatever the batch, K and chunks; "fast"; "auto": invariant
    where a probe finds that this machine's kernels allow it.
    share_prefixes: copy the KV of a prompt's beginning that another row has, where rows lie in slots and are refilled.
    pack: reorder the weights of linear layers for the CPU's products while decoding; invariant numerics need it.
    compile: run the target's layers compiled, and the draft model's.
    """

    method: str = "specproof"
    batch_size: int = 8
    num_draft_tokens: int = 5
    adaptive: bool = False
    draft_head: int | None = None
    draft_bits: int | None = None
    layout: str | None = None
    scheduler: str | None = None
    commit: str | None = None
    window: int = 32
    sort_by_length: bool = False
    prefill_chunk: int = 256
    attention: str = "sdpa"
    numerics: str = "auto"
    share_prefixes: bool = True
    pack: bool = True
    compile: bool = False

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of("attention", self.attention, ATTENTION_NAMES)
        _one_of("numerics", self.numerics, NUMERICS_NAMES)
        for name, value, known in (
            ("layout", self.layout, LAYOUT_NAMES),
            ("scheduler", self.scheduler, SCHEDULER_NAMES),
            ("commit", self.commit, COMMIT_NAMES),
        ):
            if value is not None:
                _one_of(name, value, known)
        for name, least in (("batch_size", 1), ("num_draft_tokens", 0), ("prefill_chunk", 1), ("window", 1)):
            value = getattr(self, name)
            if not is_whole(value, least):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least {least}")
        if self.numerics == "invariant" and not self.pack:
            raise ConfigError(
                "numerics is 'invariant' and pack is off, but invariant products need packed weights; "
                "pack them, or take numerics auto or fast"
            )
        if not isinstance(self.adaptive, bool):
            raise ConfigError(f"adaptive is {self.adaptive!r}; it must be True or False")
        if self.draft_head is not None and not is_whole(self.draft_head, 1):
            raise ConfigError(f"draft_head is {self.draft_head!r}; it must be a whole number of at least 1, or None")
        if self.draft_bits is not None and (self.draft_bits != 4 or isinstance(self.draft_bits, float)):
            raise ConfigError(f"draft_bits is {self.draft_bits!r}; it must be 4, or None")
        if self.draft_bits is not None and self.parts.layout != "slotted":
            raise ConfigError(
                f"draft_bits needs the slotted layout, and method {self.method!r} has another here; "
                "leave one of them out"
            )
        if self.parts.scheduler == "same-length" and self.window < self.batch_size:
            raise ConfigError(
                f"window is {self.window}, smaller than batch_size {self.batch_size}; a batch is taken from the window"
            )

    @property
    def shares_prefixes(self) -> bool:
        """share_prefixes, where the parts can."""
        return self.share_prefixes and self.parts.layout == "slotted" and self.parts.scheduler == "continuous"

    @property
    def parts(self) -> Method:
        """The method's parts with the overrides applied."""
        base = METHODS[self.method]
        return Method(
            self.layout or base.layout,
            self.scheduler or base.scheduler,
            self.commit or base.commit,
            base.drafts,
            base.summary,
        )


def _one_of(name: str, value: object, known) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; known: {', '.join(known)}")
