"""Operators in training mode, which an inference compiler refuses.

A dropout is one unless the model is in eval mode: then its forward asks for it, and the numbers are drawn in the kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import origin


def _argument(args: Sequence[Any], k: int) -> Any:
    return args[k] if k < len(args) else None


def _dropout(args: Sequence[Any]) -> bool:
    return bool(_argument(args, 2)) and bool(_argument(args, 1))


_IN_EVAL = "monotile.in_eval"  # in `GraphModule.meta`

# aten name -> whether it is active, from the positional arguments
_DROPOUTS: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    "aten.dropout": _dropout,
    "aten.dropout_": _dropout,
    "aten.feature_dropout": _dropout,
    "aten.feature_dropout_": _dropout,
    "aten.alpha_dropout": _dropout,
    "aten.alpha_dropout_": _dropout,
    "aten.feature_alpha_dropout": _dropout,
    "aten.feature_alpha_dropout_": _dropout,
    "aten.native_dropout": _dropout,
}
# The same of operators that are not compiled while they are active.
_ACTIVE: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    # Without running statistics, inference uses the batch's own too.
    "aten.batch_norm": lambda a: bool(_argument(a, 5)) and _argument(a, 3) is not None,
    "aten.instance_norm": lambda a: bool(_argument(a, 5)) and _argument(a, 3) is not None,
    "aten.scaled_dot_product_attention": lambda a: bool(_argument(a, 4)),
    "aten.rrelu": lambda a: bool(_argument(a, 3)),
    "aten.lstm": lambda a: bool(_argument(a, 5)) and bool(_argument(a, 6)),
    "aten.gru": lambda a: bool(_argument(a, 5)) and bool(_argument(a, 6)),
    "monotile.packed_rnn": lambda a: bool(_argument(a, 5)) and bool(_argument(a, 6)),
}


def note_mode(graph_module: fx.GraphModule, *, training: bool) -> None:
    """Records the mode of the model whose graph this is."""
    graph_module.meta[_IN_EVAL] = not training


def is_in_eval(graph_module: fx.GraphModule) -> bool:
    """Whether the model is known to be in eval mode."""
    return bool(graph_module.meta.get(_IN_EVAL))


def is_training(node: fx.Node, *, in_eval: bool = False) -> bool:
    """Whether the operator is an active dropout or normalises with the statistics of the batch. in_eval: of a model in eval mode."""
    name = str(node.target).rpartition(".")[0]
    active = _ACTIVE.get(name) or (None if in_eval else _DROPOUTS.get(name))
    return active is not None and active(node.args)


def is_idle(node: fx.Node) -> bool:
    """Whether the operator is one of these and behaves as in inference."""
    known = str(node.target).rpartition(".")[0] in {**_ACTIVE, **_DROPOUTS}
    return known and not is_training(node)


def refuse_training(graph_module: fx.GraphModule) -> None:
    """Raises CaptureError if a dropout is active or a batch normalisation uses the batch's statistics."""
    in_eval = is_in_eval(graph_module)
    for module in graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if is_training(node, in_eval=in_eval):
                where = origin(node.stack_trace)
                raise CaptureError(
                    f"{node.target} is in training mode"
                    + (f", at {where}" if where else "")
                    + ". Monotile compiles inference: call model.eval() first"
                )
