"""Finds the layers of a model that can be packed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from monotile.errors import InputError
from monotile.packing.stacks import Stack, stacks_of

Where = Callable[[str, nn.Module], bool] | Sequence[str] | None


@dataclass(frozen=True)
class Layers:
    """chosen: the layers to pack, by name, embeddings last. stacks: those of experts, by the parameter's name. left: the names of other
    layers and parameters, and why they are not packed."""

    chosen: dict[str, nn.Module]
    stacks: dict[str, Stack]
    left: dict[str, str]


def layers_of(model: nn.Module, where: Where, *, embeddings: bool = False) -> Layers:
    """embeddings: also choose embeddings, and linear layers tied to them. Raises InputError if there is nothing to pack."""
    fit = dict[str, nn.Module]()
    left = dict[str, str]()
    stacks = dict[str, Stack]()
    owners = _owners(model)
    for name, module in model.named_modules():
        if not (is_linear(module) or (embeddings and is_embedding(module))):
            found = {f"{name}.{s.name}" if name else s.name: s for s in stacks_of(module)}
            for own, stack in found.items():
                if reason := _why_not(own, stack, where, owners):
                    left[own] = reason
                else:
                    stacks[own] = stack
            kind = type(module).__name__
            what = "embeddings=True packs it" if is_embedding(module) else "which is no linear layer"  # fmt: skip
            for own, p in module.named_parameters(name, recurse=False):
                if p.dim() > 1 and own not in found:
                    left[own] = f"a parameter of {kind}, {what}"
        elif not _wanted(name, module, where):
            left[name] = "left out by where"
        elif reason := _obstacle(module):
            left[name] = reason
        else:
            fit[name] = module
    chosen = dict[str, nn.Module]()
    for name in sorted(fit, key=lambda n: is_embedding(fit[n])):
        if reason := _tie(name, fit, owners):
            left[name] = reason
        else:
            chosen[name] = fit[name]
    if not chosen and not stacks:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in left.items())
        raise InputError(
            f"nothing to pack: no nn.Linear, or Conv1D or experts of transformers, is left to be packed{reasons}"
        )
    return Layers(chosen, stacks, left)


def _why_not(name: str, stack: Stack, where: Where, owners: Mapping[int, list[str]]) -> str | None:
    """Why a stack of experts is not packed."""
    names = (name, name.rpartition(".")[0])
    if not any(_wanted(n, stack.module, where) for n in names):
        return "left out by where"
    others = [n for n in owners[id(stack.parameter)] if n != name]
    if others:
        return _tied(others)
    return None if stack.parameter.numel() else "its weight is empty"


def is_embedding(module: nn.Module) -> bool:
    """Whether it is nn.Embedding, of any subclass."""
    return isinstance(module, nn.Embedding)


def is_linear(module: nn.Module) -> bool:
    """Whether it is nn.Linear, of any subclass, or the Conv1D of transformers."""
    return isinstance(module, nn.Linear) or is_conv1d(module)


def is_conv1d(module: nn.Module) -> bool:
    """transformers' linear layer whose weight is [in, out]. Recognised by its name and attributes, as transformers need not be
    installed."""
    weight = getattr(module, "weight", None)
    named = type(module).__name__ == "Conv1D" and hasattr(module, "nf")
    return named and isinstance(weight, Tensor) and weight.dim() == 2


def dense_weight(module: nn.Module) -> Tensor:
    """[out, in], a view."""
    weight = module.get_parameter("weight").detach()
    return weight.T if is_conv1d(module) else weight


def replace_in(model: nn.Module, packed: Mapping[nn.Module, nn.Module]) -> None:
    """Replaces each module that is a key by its value, wherever it occurs."""
    for parent in list(model.modules()):
        # named_children leaves out a child's second place.
        children: dict[str, nn.Module | None] = vars(parent)["_modules"]
        for name, child in children.items():
            if child is not None and child in packed:
                children[name] = packed[child]


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by its id; a module in several places counts once."""
    found = dict[int, list[str]]()
    for name, module in model.named_modules():
        for own, p in module.named_parameters(name, recurse=False, remove_duplicate=False):
            found.setdefault(id(p), []).append(own)
    return found


def _wanted(name: str, module: nn.Module, where: Where) -> bool:
    if where is None:
        return True
    if callable(where):
        return where(name, module)
    patterns = [where] if isinstance(where, str) else where
    return any(fnmatchcase(name, p) for p in patterns)


def _obstacle(module: nn.Module) -> str | None:
    """Why a layer cannot be replaced without changing the model's behaviour."""
    parts = dict(module.named_parameters(recurse=False)).keys()
    rest = [*module.children(), *module.buffers(recurse=False)]
    plain = nn.Embedding if isinstance(module, nn.Embedding) else nn.Linear
    own_forward = isinstance(module, plain) and type(module).forward is not plain.forward
    if not {"weight"} <= parts <= {"weight", "bias"} or rest or own_forward:
        return f"{type(module).__name__} has a forward or tensors of its own"
    if any(_hooks(module)):
        return "it has hooks"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "it changes its weight in each call (max_norm)"
    return None if module.get_parameter("weight").numel() else "its weight is empty"


def _tie(name: str, fit: Mapping[str, nn.Module], owners: Mapping[int, list[str]]) -> str | None:
    """Why a weight shared by several modules cannot be packed; it can if embeddings and at most one suitable linear layer share it."""
    names = owners[id(fit[name].get_parameter("weight"))]
    sharing = [fit.get(n.rpartition(".")[0]) for n in names]
    alike = all(isinstance(m, (nn.Linear, nn.Embedding)) for m in sharing)
    if len(names) == 1 or (alike and sum(isinstance(m, nn.Linear) for m in sharing) < 2):
        return None
    return _tied(n for n in names if n.rpartition(".")[0] != name)


def _tied(others: Iterable[str]) -> str:
    return f"its weight is tied: it is also {' and '.join(others)}"


def _hooks(module: nn.Module) -> Iterator[object]:
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        yield getattr(module, name)
