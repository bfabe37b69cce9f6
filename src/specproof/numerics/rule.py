"""The rule: which shapes the kernels see. Everything else follows from the kernels, and the probe measures those."""

from dataclasses import dataclass

# Rows of one packed product, at least. A single row goes another way in oneDNN and gets other bits; and of one to three
# rows each product takes longer than of four (AVX-512, bfloat16 and float32).
LEAST = 4
BLOCK = 320  # most rows of one product: a whole chunk of a prompt and 64 other tokens, so weights are read once
SMALL_BLOCK = 64  # where kernels are the same up to here only
QUERIES = 64  # most query positions of one row in an attention call
KEYS = 64  # key places of an attention call are a multiple of it


@dataclass(frozen=True, slots=True)
class Numerics:
    """How one model's forwards are computed.

    invariant: products and attention get only shapes in which the probe found a token's result to be the same bits
    whatever else is computed; else they get the shapes that come. packed: weights lie in the order in which oneDNN
    reads them. reason: why it is so, in a sentence. compiled: decoder layers run compiled. most_rows: of one product,
    if invariant.
    """

    invariant: bool
    packed: bool
    reason: str
    compiled: bool = False
    most_rows: int = BLOCK

    @property
    def kind(self) -> str:
        return "invariant" if self.invariant else "fast"

    @property
    def block(self) -> int | None:
        """Most rows of one product; None: no limit."""
        return self.most_rows if self.invariant else None

    @property
    def queries(self) -> int | None:
        """Most query positions of one row in an attention call; None: no limit."""
        return QUERIES if self.invariant else None

    @property
    def least_tokens(self) -> int:
        """Tokens of a flat forward, at least: so no product has to add rows. Compiled layers take two or more."""
        return LEAST if self.packed else 2 if self.compiled else 1

    def query_rows(self, rows: int) -> int:
        """Query rows of an attention call for `rows` of them (query positions x heads on one key head).

        PyTorch's CPU kernel takes them in blocks of 32 or a multiple; a last block of less than 4 goes another way.
        """
        rest = rows % 32
        return rows + 4 - rest if self.invariant and 0 < rest < 4 else rows

    def key_length(self, length: int) -> int:
        """Key places of an attention call for `length` visible ones.

        PyTorch's CPU kernel takes keys in blocks of 512, and sums a block in one piece if it has up to 192 places or
        at least 384. Between these it cuts the sum, and then another order results.
        """
        if not self.invariant:
            return length
        padded = -(-length // KEYS) * KEYS
        return padded + 384 - padded % 512 if 192 < padded % 512 < 384 else padded


PLAIN = Numerics(invariant=False, packed=False, reason="nothing was asked for")
