"""One row while it is decoded: the only mutable record of the engine."""

from collections import Counter
from dataclasses import dataclass, field

from specproof.request import FinishReason, Output, Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A row's state.

        [0, cached_len)        KV valid
        [cached_len, seq_len)  known, KV not yet computed: after prefill exactly one token, the pending one

    Lengths are stored, never inferred from ids. limit: most tokens the row may emit (max_new_tokens, or less where the
    context ends). end_ids: ids that end the row; none of them can be chosen before `min_len` tokens are known.
    """

    request_id: str
    request: Request
    token_ids: list[int]
    prompt_len: int
    limit: int
    end_ids: frozenset[int]
    cached_len: int = 0
    num_shared: int = 0  # prompt tokens whose KV was taken over from another row
    num_drafted: int = 0
    acceptances: Counter[int] = field(default_factory=Counter)  # accepted drafts of a step -> steps

    @property
    def seq_len(self) -> int:
        return len(self.token_ids)

    @property
    def emitted(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    @property
    def remaining(self) -> int:
        """Tokens it may still emit."""
        return self.prompt_len + self.limit - self.seq_len

    @property
    def prefill_left(self) -> int:
        """Prompt tokens still to be computed before the row can emit: all but the pending one."""
        return self.seq_len - 1 - self.cached_len

    @property
    def min_len(self) -> int:
        return self.prompt_len + self.request.min_new_tokens

    def output(
        self, text: str | None, reason: FinishReason, stop: int | str | None, error: str | None = None
    ) -> Output:
        """The finished row."""
        steps = sum(self.acceptances.values())
        return Output(
            request_id=self.request_id,
            prompt_len=self.prompt_len,
            token_ids=tuple(self.emitted),
            text=text,
            finish_reason=reason,
            stop=stop,
            error=error,
            num_steps=steps,
            num_shared=self.num_shared,
            num_drafted=self.num_drafted,
            num_accepted=sum(accepted * count for accepted, count in self.acceptances.items()),
            acceptance_histogram=tuple(self.acceptances[j] for j in range(max(self.acceptances, default=-1) + 1)),
        )
