"""Text to ids and back, and whether two models mean the same by an id."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specproof.errors import ConfigError, RequestError, TokenizerMismatchError

# Where normalizers and pre-tokenizers part: case, accents (composed and not), spaces, digits, code, scripts, emoji.
PROBE = (
    "Größe: 12345.67 km²,  don't\tSTOP!\n\n    def f(x): return x**2  # naïve cafe\u0301\n"
    "Ελληνικά, русский язык, 日本語のテキスト, 中文, 한국어, العربية, हिन्दी, ไทย 🙂👩‍💻 https://example.org/a?b=1"
)


class Tokenizer:
    """A Hugging Face tokenizer, reduced to what decoding needs."""

    def __init__(self, hf_tokenizer: PreTrainedTokenizerBase) -> None:
        self._hf: Any = hf_tokenizer

    @classmethod
    def load(cls, name_or_path: str | Path, trust_remote_code: bool = False) -> "Tokenizer":
        """The tokenizer of a local folder or a hub name. Raises ConfigError if there is none that can be loaded."""
        path = Path(name_or_path).expanduser()
        source = str(path) if path.exists() else str(name_or_path)
        try:
            return cls(AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code))
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(f"cannot load a tokenizer from {source}: {error}") from error

    @property
    def bos_id(self) -> int | None:
        return self._hf.bos_token_id

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode` leaves out: BOS, EOS and the like, and added tokens that are marked special."""
        added = {index for index, token in self._hf.added_tokens_decoder.items() if token.special}
        return frozenset(added.union(self._hf.all_special_ids))

    @property
    def named_ids(self) -> dict[str, int]:
        """The ids of `pad`, `unk` and `bos`, those that this tokenizer has."""
        found = {name: getattr(self._hf, f"{name}_token_id", None) for name in ("pad", "unk", "bos")}
        return {name: index for name, index in found.items() if index is not None}

    def vocabulary(self) -> dict[int, str]:
        """Every id and its token, as the vocabulary spells it. The model's padded embedding rows have none."""
        return {index: token for token, index in self._hf.get_vocab().items()}

    def encode(self, text: str) -> list[int]:
        """The ids of `text` at its full length, with the special tokens that the model expects around a prompt."""
        return self._encode(text, special=True)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of a conversation in the model's chat template, up to where the assistant's answer begins.

        Each message has a `role` and a `content`. Raises RequestError if the tokenizer has no chat template, or if the
        messages do not fit it.
        """
        if not self._hf.chat_template:
            raise RequestError("this tokenizer has no chat template; give the prompt as text or token ids instead")
        if not messages:
            raise RequestError("messages is empty; it must hold at least one message")
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
                raise RequestError(f"messages[{index}] is {message!r}; it must be an object with role and content")
        try:
            text = self._hf.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program that came with the model: it may raise anything
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        return self._encode(text, special=False)  # the template has written the special tokens

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens. Ids that the vocabulary does not have add nothing."""
        return self._hf.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def spell(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens spelt out."""
        return self._hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _encode(self, text: str, special: bool) -> list[int]:
        # verbose=False: whether the prompt fits is the engine's to say; the tokenizer only knows a default length.
        return self._hf(text, add_special_tokens=special, truncation=False, verbose=False)["input_ids"]


def convert_gguf_tokenizer(gguf: Path, out: Path) -> None:
    """Write the tokenizer of a GGUF file to folder `out`."""
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)


def require_same(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise TokenizerMismatchError, naming the first difference, unless both give text and ids the same meaning.

    Compared are the whole mapping of ids to tokens, added tokens included, and the ids of a short text in many scripts
    (the same vocabulary can be applied by different rules). The special tokens put around a prompt may differ: prompts
    are always encoded by the target's tokenizer.
    """
    ours, theirs = target.vocabulary(), draft.vocabulary()
    if ours != theirs:
        first = min(index for index in ours.keys() | theirs.keys() if ours.get(index) != theirs.get(index))
        raise TokenizerMismatchError(
            f"target and draft need one tokenizer: id {first} is {_name(ours, first)} in the target's tokenizer "
            f"and {_name(theirs, first)} in the draft's"
        )
    a, b = target._encode(PROBE, special=False), draft._encode(PROBE, special=False)
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        raise TokenizerMismatchError(
            "target and draft need one tokenizer: they have the same vocabulary but split text differently; "
            f"token {at} of a test text is {_piece(a, at, ours)} by the target's tokenizer "
            f"and {_piece(b, at, theirs)} by the draft's"
        )


def _name(vocabulary: dict[int, str], index: int) -> str:
    return repr(vocabulary[index]) if index in vocabulary else "not defined"


def _piece(ids: list[int], at: int, vocabulary: dict[int, str]) -> str:
    return f"{_name(vocabulary, ids[at])} (id {ids[at]})" if at < len(ids) else "missing"
