"""A clock that stands still but for forwards, which take what a price list says: every decision is determined."""

from collections.abc import Callable, Sequence
from typing import Any

from specproof import Engine, EngineConfig, Request
from specproof.drafters import ModelDrafter
from specproof.lm import LM
from specproof.step import StepRecord

Price = Callable[[int], float]


class PricedClock:
    """now: seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def charge(self, layout: Any, price: Price) -> None:
        """From now on each forward of this layout takes price(tokens)."""
        original = layout.forward

        def forward(feeds: Sequence[Any], device_ids: Any = None) -> Any:
            self.now += price(sum(feed.length for feed in feeds))
            return original(feeds, device_ids)

        layout.forward = forward


def decode_priced(
    lm: LM,
    drafts: Any,
    requests: Sequence[Request],
    price: Price,
    draft_price: Price = lambda tokens: 0.0,
    **options: Any,
) -> tuple[list[Any], list[StepRecord], float]:
    """Outputs, records, seconds of the priced clock."""
    clock = PricedClock()
    engine = Engine(lm, drafts, EngineConfig(**options), clock=clock)
    clock.charge(engine.layout, price)
    drafter = getattr(engine.drafter, "model", engine.drafter)
    if isinstance(drafter, ModelDrafter):
        clock.charge(drafter.layout, draft_price)
    records: list[StepRecord] = []
    engine.observers.append(records.append)
    outputs = engine.generate(requests)
    return outputs, records, clock.now
