"""Linear layers whose weights lie in the order in which oneDNN reads them; packed and unpacked in place.

The operators are those that `torch.compile` with freezing puts in (PyTorch's names for them begin with an underscore:
they are not promised to stay; where they are missing nothing is packed). The public `torch.utils.mkldnn` gives the same
bits, but copies its input and output and reorders the weight again at each call.
"""

import copy
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from specproof.numerics.linear import Substitute, bias_of, dense_weight, is_conv1d, is_plain, linear_shape
from specproof.numerics.opaque import packed_product

# Layers of one module that a model calls with the same states: computed as one product.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Product:
    """One product with the packed weights of layers that read the same states; mostly of a single layer.

    sizes: outputs of each layer. in_features: inputs of all. tensors: "weight", packed, and "bias", which may be None.
    """

    def __init__(self, originals: Sequence[nn.Module]) -> None:
        weights = [dense_weight(original) for original in originals]
        biases = [bias_of(original) for original in originals]
        self.sizes = [len(weight) for weight in weights]
        self.in_features = weights[0].shape[1]
        self.tensors: dict[str, Any] = {
            "weight": torch.ops.mkldnn._reorder_linear_weight(_joined(weights), None),
            "bias": None if biases[0] is None else _joined(biases),
        }
        self._held: tuple[Tensor, list[Tensor | None]] | None = None  # states, and the outputs not yet asked for

    @property
    def shape(self) -> tuple[int, int, bool]:
        """(out, in, has a bias)"""
        return sum(self.sizes), self.in_features, self.tensors["bias"] is not None

    def __call__(self, states: Tensor) -> Tensor:
        """states: (..., in) -> (..., out), the outputs of all layers."""
        rows = states.reshape(-1, self.in_features)
        product = torch.ops.specproof.linear if torch.compiler.is_compiling() else packed_product
        out = product(rows, self.tensors["weight"], self.tensors["bias"], sum(self.sizes))
        return out.view(*states.shape[:-1], sum(self.sizes))

    def part(self, number: int, states: Tensor) -> Tensor:
        """The outputs of one layer. Computed for all when the first is asked for, and held until each was."""
        if len(self.sizes) == 1:
            return self(states)
        held = self._held
        if held is None or held[0] is not states or held[1][number] is None:
            held = self._held = (states, list(self(states).split(self.sizes, -1)))
        part, held[1][number] = held[1][number], None
        if all(other is None for other in held[1]):
            self._held = None
        assert part is not None
        return part

    def weight(self, number: int) -> Tensor:
        """(out, in) of one layer, made anew."""
        dense = self.tensors["weight"].to_dense()
        return dense if len(self.sizes) == 1 else dense.split(self.sizes)[number].clone()


class PackedLinear(Substitute):
    """Stands in for an nn.Linear or a Conv1D. Gives each row the same bits for any number of rows.

    The original keeps its place in memory and its parameters, but its weight is empty meanwhile, unless other modules
    share it (a tied embedding). A deep copy is an ordinary layer again. number: its place in the product.
    """

    def __init__(self, original: nn.Module, product: Product, number: int) -> None:
        super().__init__()
        self.shape = product.shape
        self.is_transposed = is_conv1d(original)
        self.in_features, self.out_features = product.in_features, product.sizes[number]
        self.product = product
        self.packed = product.tensors
        self.number = number
        self._original = (original,)  # in a tuple: not a submodule

    @property
    def original(self) -> nn.Module:
        return self._original[0]

    @property
    def weight(self) -> Tensor:
        """The weight as the original has it, made anew."""
        dense = self.product.weight(self.number)
        return dense.t().contiguous() if self.is_transposed else dense

    @property
    def bias(self) -> Any:
        return self.original.bias

    def forward(self, states: Tensor) -> Tensor:
        """states: (..., in) -> (..., out)."""
        return self.product.part(self.number, states)

    def restore(self) -> nn.Module:
        """The original with its weight back, bit for bit."""
        weight = self.original.get_parameter("weight")
        if not weight.numel():
            weight.data = self.weight
        return self.original

    def __deepcopy__(self, memo: dict) -> nn.Module:
        weight = self.original.get_parameter("weight")
        if weight.numel():
            return copy.deepcopy(self.original, memo)
        self.restore()
        try:
            return copy.deepcopy(self.original, memo)
        finally:
            weight.data = weight.data.new_empty(0)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unpickled, (copy.deepcopy(self),)

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        """The model is moved or converted: first it gets its weights back."""
        _unpack_holders({self})
        return self.original._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any) -> None:
        """The model is given other weights: first it gets its own back."""
        _unpack_holders({self})
        self.original._load_from_state_dict(*args)

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()


def _unpickled(module: nn.Module) -> nn.Module:
    return module


# Of each packed model, which layers stand where: parent, name, the layer. It does not keep the model alive.
_PACKED: WeakKeyDictionary[nn.Module, list[tuple[ref[nn.Module], str, PackedLinear]]] = WeakKeyDictionary()


def is_packed(model: nn.Module) -> bool:
    return model in _PACKED


def arrange(model: nn.Module, packed: bool) -> None:
    """Have the model's linear layers packed, or as they came."""
    if packed and model not in _PACKED:
        try:
            _pack(model)
        except BaseException:  # an interrupt, no memory
            unpack(model)
            raise
    elif not packed and _PACKED:
        unpack(model)


@torch.inference_mode(False)
@torch.no_grad()
def _pack(model: nn.Module) -> None:
    layers = _PACKED[model] = []
    modules = list(model.modules())
    uses = Counter(id(p) for module in modules for p in module._parameters.values() if p is not None)
    made: dict[int, PackedLinear] = {}
    for parent in modules:
        children = {name: child for name, child in parent._modules.items() if child is not None and is_packable(child)}
        for names in _groups(children, uses, made):
            originals = [children[name] for name in names]
            if id(originals[0]) not in made:
                product = Product(originals)
                made |= {id(original): PackedLinear(original, product, n) for n, original in enumerate(originals)}
            for name, original in zip(names, originals, strict=True):
                layers.append((ref(parent), name, made[id(original)]))
                parent._modules[name] = made[id(original)]
                weight = original.get_parameter("weight")
                if uses[id(weight)] == 1:
                    weight.data = weight.data.new_empty(0)


def _groups(
    children: Mapping[str, nn.Module], uses: Mapping[int, int], made: Container[int]
) -> Iterator[tuple[str, ...]]:
    """Names of layers that are packed as one. uses: of each parameter, made: layers that have been packed; by id."""
    alone = dict.fromkeys(children)
    for names in TOGETHER:
        if all(name in children for name in names):
            layers = [children[name] for name in names]
            new = all(uses[id(layer.weight)] == 1 and id(layer) not in made for layer in layers)
            if new and len({(type(layer), *(linear_shape(layer) or ())[1:]) for layer in layers}) == 1:
                yield names
                for name in names:
                    del alone[name]
    for name in alone:
        yield (name,)


def unpack(model: nn.Module) -> None:
    """The model as it came: same modules, same parameters, same bits. Nothing happens if it is not packed.

    So are models that share layers with it (see LM.with_head): they pack anew.
    """
    _unpack_holders(set(model.modules()))


@torch.inference_mode(False)
@torch.no_grad()
def _unpack_holders(modules: set[nn.Module]) -> None:
    """Unpack the models that have one of these modules."""
    for model, layers in list(_PACKED.items()):
        if not modules.isdisjoint(model.modules()):
            for place, name, layer in layers:
                parent = place()
                assert parent is not None, "a module was taken out of the model while it was packed"
                parent._modules[name] = layer.restore()
            del _PACKED[model]


def is_packable(module: nn.Module) -> bool:
    """An ordinary linear layer on the CPU, with nothing hooked to it."""
    if not is_plain(module):
        return False
    weight = module.get_parameter("weight")
    return weight.device.type == "cpu" and why_not(weight.dtype) is None


def _joined(tensors: list[Any]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def why_not(dtype: torch.dtype) -> str | None:
    """Why this PyTorch on this CPU cannot pack weights of a dtype; None if it can."""
    if dtype not in _WHY_NOT:
        _WHY_NOT[dtype] = _try_packing(dtype)
    return _WHY_NOT[dtype]


_WHY_NOT: dict[torch.dtype, str | None] = {}


def _try_packing(dtype: torch.dtype) -> str | None:
    if dtype == torch.float64:
        return "PyTorch packs float32 and bfloat16 weights, not float64"
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(32, 32, dtype=dtype), None)
        torch.ops.mkldnn._linear_pointwise(torch.zeros(2, 32, dtype=dtype), packed, None, "none", [], "")
    except (RuntimeError, AttributeError) as error:  # no such operator, no such instruction, no such dtype
        return f"PyTorch cannot pack {str(dtype).removeprefix('torch.')} weights here ({str(error).splitlines()[0]})"
    return None
