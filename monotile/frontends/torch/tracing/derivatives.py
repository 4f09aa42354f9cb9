"""Exports models that differentiate: `torch.func` and `torch.autograd` in a forward, as in physics-informed and energy-based networks and inner loops of
learning have them.

torch.export records operators before autograd sees them, and so none of those that a derivative is computed by. A model that differentiates
is traced behind autograd, where these are operators like any other.
"""

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.export import ExportedProgram
from torch.export._trace import (
    _export,  # pyright: ignore[reportPrivateUsage] # the public function only exports before autograd
)
from torch.utils import _pytree as pytree

from monotile.frontends.torch.origin import is_users

# The functions by which PyTorch begins to differentiate.
_BEGINNINGS = (
    (torch.autograd, "_engine_run_backward"),
    (eager_transforms, "_grad_increment_nesting"),
    (eager_transforms, "_jvp_increment_nesting"),
    (forward_ad, "enter_dual_level"),
)
# In PyTorch's message for a derivative by a parameter on which no result depends.
_OF_PARAMETERS = "Cannot backprop through mirrored meta"


class Exporter:
    """`torch.export.export` of one model that may differentiate. found: whether it was found to do so."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.found = False

    def __call__(self, *given: Any, **options: Any) -> ExportedProgram:
        """given, options: the arguments of `torch.export.export` after the model."""
        if not self.found:
            try:
                with self._found(), self._ended():
                    exported = torch.export.export(self.model, *given, **options)
            except Exception:
                if not self.found:
                    raise
            else:
                if not self.found:
                    return exported
        try:
            return self._behind(given, options)
        except RuntimeError as e:
            if _OF_PARAMETERS not in str(e):
                raise
        with _frozen(self.model):
            return self._behind(given, options)

    def _behind(self, given: Sequence[Any], options: Mapping[str, Any]) -> ExportedProgram:
        detaching = self.model.register_forward_hook(lambda module, args, found: _detached(found))
        try:
            with self._ended():
                return _export(self.model, *given, pre_dispatch=False, **options)
        finally:
            detaching.remove()

    @contextmanager
    def _ended(self) -> Generator[None]:
        """Ends all derivatives that are begun within: a Dynamo graph, which calls PyTorch's internal functions, would leave them open if it fails."""
        depth = functorch.get_dynamic_layer_stack_depth()
        allowed = functorch.get_inplace_requires_grad_allowed()
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # there may be none
                torch._C._exit_dual_level(level=0)  # pyright: ignore[reportPrivateUsage]
            raise
        finally:
            if functorch.get_dynamic_layer_stack_depth() > depth:
                self.found = True
                functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
            functorch.set_inplace_requires_grad_allowed(allowed)

    @contextmanager
    def _found(self) -> Generator[None]:
        with ExitStack() as stack:
            for owner, name in _BEGINNINGS:
                hearing = self._finding(getattr(owner, name))
                stack.enter_context(patch.object(owner, name, hearing))
            yield

    def _finding(self, plain: Any) -> Any:
        def hearing(*args: Any, **named: Any) -> Any:
            self.found = self.found or _is_asked()
            return plain(*args, **named)

        return hearing


def _detached(found: Any) -> Any:
    """A model's results without gradients: PyTorch would trace their derivatives too."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach() if x.requires_grad else x, found)


def _is_asked() -> bool:
    """Whether the model differentiates, and not PyTorch itself, which does so with the body of a `scan` or `map`."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back and not is_users(frame.f_code.co_filename):
        if frame.f_globals.get("__name__", "").startswith("torch._higher_order_ops"):
            return False
        frame = frame.f_back
    return True


@contextmanager
def _frozen(model: torch.nn.Module) -> Generator[None]:
    """Within, no parameter requires a gradient: `backward()` would add it to `grad`, which the kernel does not update."""
    asking = [p for p in model.parameters() if p.requires_grad]
    for p in asking:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in asking:
            p.requires_grad_(True)
