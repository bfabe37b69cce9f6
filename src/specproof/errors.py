"""Every error that specproof raises on purpose. Each message says what was wrong and what to do."""


class SpecproofError(Exception):
    """Base of all errors raised by specproof."""


class ConfigError(SpecproofError):
    """An option has a value that cannot work, alone or together with another."""


class RequestError(SpecproofError):
    """One request cannot be served. Inside a batch it ends that row only, as `finish_reason="error"`."""


class UnsupportedModelError(SpecproofError):
    """The model has a part that the engine cannot decode exactly (recurrent state, encoder-decoder, ...)."""


class TokenizerMismatchError(SpecproofError):
    """Target and draft do not share one tokenizer."""


class DrafterError(SpecproofError):
    """A drafter failed, or returned what cannot be a draft (wrong number of rows, ids outside the vocabulary)."""


class InputError(SpecproofError):
    """An input file cannot be used at all. A bad line in it is no such case: that ends its own row only."""


class ResultsError(SpecproofError):
    """A results file cannot be written, or cannot be resumed."""


class ServerError(SpecproofError):
    """A server cannot be used at all: it does not answer, wants a key, or does not know the model."""
