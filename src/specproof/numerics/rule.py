"""The rule: which shapes the kernels see. Everything else follows from the kernels, and the probe measures those."""

from dataclasses import dataclass

BLOCK = 64  # most rows of one linear product, most query positions of one attention call


@dataclass(frozen=True, slots=True)
class Numerics:
    """How one model's forwards are computed.

    invariant: products and attention get only shapes in which the probe found a token's result to be the same bits
    whatever else is computed; else they get the shapes that come. packed: weights lie in the order in which oneDNN
    reads them. reason: why it is so, in a sentence. compiled: decoder layers run compiled.
    """

    invariant: bool
    packed: bool
    reason: str
    compiled: bool = False

    @property
    def kind(self) -> str:
        return "invariant" if self.invariant else "fast"

    @property
    def block(self) -> int | None:
        """Most rows of one product and most query positions of one attention call; None: no limit."""
        return BLOCK if self.invariant else None

    def num_queries(self, count: int) -> int:
        """Query positions of an attention call for `count` of them."""
        return -(-count // 4) * 4 if self.invariant else count

    def key_length(self, length: int) -> int:
        """Key places of an attention call for `length` visible ones.

        PyTorch's CPU kernel takes keys in blocks of 512. A rest of 256 takes another path there than other multiples
        of 128 do, and then sums in another order.
        """
        if not self.invariant:
            return length
        padded = -(-length // 128) * 128
        return padded + 128 if padded % 512 == 256 else padded


PLAIN = Numerics(invariant=False, packed=False, reason="nothing was asked for")
