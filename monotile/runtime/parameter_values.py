"""Facts about the values of parameters (zeros, 2:4 metadata), reduced copies of them, and the check that a change keeps the facts on which
a kernel relies."""

from collections.abc import Mapping, Set
from operator import attrgetter

import numpy as np
import torch

from monotile.analysis.pruning.facts import Zeros, enough, is_vector, packed, vector
from monotile.analysis.pruning.specialised import Gathered, Specialised
from monotile.errors import InputError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_version = attrgetter("_version")


def zeros_of(tensors: Mapping[str, object]) -> dict[str, Zeros]:
    """Zeros of floating-point tensors, by name: the zero elements of matrices with enough zeros for a row or column, and all elements of
    vectors."""
    found: dict[str, Zeros] = {}
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor) or x.dtype not in _FLOATS or x.numel() == 0:
            continue
        x, shape = x.detach(), tuple(x.shape)
        if is_vector(shape):
            found[name] = vector(shape, x.double().cpu().flatten().tolist())
            continue
        zero = x == 0
        if enough(int(zero.sum()), shape):
            found[name] = Zeros(shape, packed(zero.cpu().numpy()))
    return found if any(z.bits or 0.0 in z.values for z in found.values()) else {}


def ascending_in(tensors: Mapping[str, object]) -> frozenset[str]:
    """Names of the tensors that can be 2:4 metadata (see `ascends`). The first few kilobytes rule out nearly all others."""
    few = 1 << 12
    return frozenset(
        name
        for name, x in tensors.items()
        if type(x) in (torch.Tensor, torch.nn.Parameter)  # of other classes there may be no values
        and isinstance(x, torch.Tensor)
        and x.dtype is torch.uint8
        and x.dim() > 1
        and x.device.type != "meta"
        and ascends(x.detach().flatten()[:few])
        and ascends(x)
    )


def ascends(x: torch.Tensor) -> bool:
    """Whether each byte holds two pairs of 2-bit numbers, the first number in the low bits, and each pair ascends."""
    x = x.detach()
    low, high = x & 0x33, x >> 2 & 0x33
    return bool(((low & 3) < (high & 3)).all()) and bool(((low >> 4) < (high >> 4)).all())


def gather(x: torch.Tensor, gathered: Gathered | None) -> torch.Tensor:
    """The elements of `x` that the kernel reads, in new memory; `x` itself if it reads all."""
    if gathered is None:
        return x
    for d, kept in gathered.kept:
        x = x.index_select(d, torch.tensor(kept, device=x.device))
    return x


class Watch:
    """The tensors that a kernel has copies of, or whose values it relies on: detects changes, and handles them.

    A check costs some tens of nanoseconds per tensor: PyTorch counts the in-place changes of each. It does not count changes through
    `tensor.data`, nor those of inference tensors.
    """

    def __init__(
        self, specialised: Specialised, given: Mapping[str, torch.Tensor], copied: Set[str]
    ) -> None:
        """copied: names of the tensors that the kernel has copies of in another order."""
        self._specialised, self._copied = specialised, copied
        self.tensors: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}
        self._counted: list[torch.Tensor] = []
        self._sum = 0
        self.take(given)

    @staticmethod
    def of(
        specialised: Specialised, given: Mapping[str, torch.Tensor], copied: Set[str]
    ) -> "Watch | None":
        """None if there is nothing to watch."""
        needed = specialised.removed or specialised.ascending or copied
        return Watch(specialised, given, copied) if needed else None

    def take(self, given: Mapping[str, torch.Tensor]) -> None:
        """Watches these tensors instead of those of the same names."""
        s = self._specialised
        about = {*s.relied, *s.gathered, *s.ascending, *self._copied}
        self.tensors |= {n: x for n, x in given.items() if n in about}
        self._see()

    def _see(self) -> None:
        counted = {n: x for n, x in self.tensors.items() if not x.is_inference()}
        self._versions = {n: x._version for n, x in counted.items()}
        self._counted = list(counted.values())
        self._sum = sum(self._versions.values())

    def changed(self) -> bool:
        """Whether a tensor has been changed in place: the counts only grow."""
        return sum(map(_version, self._counted)) != self._sum

    def refresh(self, held: Mapping[str, torch.Tensor]) -> Set[str]:
        """Updates the kernel's reduced copies `held`. Returns the names of changed tensors. Raises InputError, and changes nothing, if a
        tensor has lost a fact on which the kernel relies."""
        others = {
            n: self.tensors[n] for n, v in self._versions.items() if self.tensors[n]._version != v
        }
        for name, x in others.items():
            self.check(name, x)
        with torch.inference_mode():  # where the copies may be made in
            for name, x in others.items():
                if name in self._specialised.gathered:
                    held[name].copy_(gather(x, self._specialised.gathered[name]))
        self._see()
        return others.keys()

    def check(self, name: str, x: torch.Tensor) -> None:
        """Raises InputError if `x`, as the parameter `name`, lacks a fact on which the kernel relies."""
        if name in self._specialised.ascending and not ascends(x):
            raise InputError(
                f"parameter {name} no longer has two places in each four neighbours that ascend, which the kernel relies on."
                " Sort them, and the values with them, or compile again"
            )
        relied = self._specialised.relied.get(name)
        if relied is None:
            return
        if relied.values:
            known = torch.from_numpy(relied.vector).reshape(relied.shape)
            same = (x.detach().cpu().double() == known) | known.isnan()
        else:
            mask = torch.from_numpy(np.ascontiguousarray(relied.mask)).to(x.device)
            same = (x.detach() == 0) | ~mask
        if not bool(same.all()):
            what = "has other values" if relied.values else "is no longer zero"
            raise InputError(
                f"parameter {name} {what} where the model was specialised: what was removed is of use now."
                " Keep its zeros (apply the mask again), or compile again"
            )
