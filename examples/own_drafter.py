"""A drafter of your own: any object with `propose`. This one knows phrases that answers tend to contain."""

from specproof import Engine, EngineConfig, Request
from specproof.drafters import DraftRow
from specproof.embedded import default_model_folder
from specproof.tokenizer import Tokenizer


class Phrases:
    """Proposes the rest of a phrase as soon as a row ends with its first two tokens."""

    def __init__(self, tokenizer: Tokenizer, phrases: list[str]) -> None:
        self.phrases = [tuple(tokenizer.encode(phrase)) for phrase in phrases]

    def propose(self, rows: list[DraftRow], max_tokens: int) -> list[list[int]]:
        return [self.rest(row.token_ids)[:max_tokens] for row in rows]

    def rest(self, ids: tuple[int, ...]) -> list[int]:
        for phrase in self.phrases:
            if ids[-2:] == phrase[:2]:
                return list(phrase[2:])
        return []  # nothing to propose: this row just decodes one token


folder = default_model_folder()
tokenizer = Tokenizer.load(folder)
drafter = Phrases(tokenizer, ["The capital of France is Paris.", "The capital of Italy is Rome."])
engine = Engine(folder, drafter, EngineConfig(batch_size=2))
questions = ["What is the capital of France?", "What is the capital of Italy?", "What is 2 + 2?"]
prompts = [tokenizer.encode_chat([{"role": "user", "content": question}]) for question in questions]

for output in engine.stream([Request(prompt, max_new_tokens=24) for prompt in prompts]):
    print(f"{output.request_id}: {output.text!r}  accepted {output.num_accepted} of {output.num_drafted} drafts")
