"""Decomposes an exported graph to functional ATen, into operators that have lowerings as far as possible."""

import logging
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._ops import OperatorBase
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx.experimental import _config as config

from monotile.errors import CaptureError
from monotile.frontends.torch.graph import is_lowered
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.registry import find
from monotile.frontends.torch.rewriting.autocast import within
from monotile.frontends.torch.rewriting.backward import DECOMPOSITIONS
from monotile.frontends.torch.rewriting.custom_operators import decompositions_of_custom
from monotile.frontends.torch.rewriting.fake_quantizing import FAKE_QUANTIZED
from monotile.frontends.torch.rewriting.fast_paths import decompositions
from monotile.frontends.torch.rewriting.foreach import decompositions_of_lists
from monotile.frontends.torch.rewriting.in_place import without_updates
from monotile.frontends.torch.rewriting.lifted import lifted_once
from monotile.frontends.torch.rewriting.matrix_exponential import matrix_exponential
from monotile.frontends.torch.rewriting.pseudoinverse import pseudoinverse
from monotile.frontends.torch.rewriting.quantizing import decompositions_in
from monotile.frontends.torch.rewriting.sharing import shared_as_run
from monotile.frontends.torch.sizes.view_shapes import views_have_stated_shapes
from monotile.frontends.torch.tracing.effect_tokens import checks_have_no_tokens
from monotile.frontends.torch.tracing.inference_mode import mode_of
from monotile.frontends.torch.tracing.recurrent_shapes import shapes_of_recurrent_layers

Table = dict[OperatorBase, Callable[..., Any]]


def decompose(exported: ExportedProgram) -> ExportedProgram:
    """`exported` in functional ATen; operators with a lowering are not decomposed."""
    if is_lowered(exported.graph_module):
        return exported  # decomposing would trace it again, which takes as long as the export
    exported = shared_as_run(lifted_once(exported))
    plain = without_updates(exported)
    if is_lowered(plain.graph_module):
        return plain
    with quiet():
        table = torch.export.default_decompositions()
        table.update(decompositions())
        table.update(DECOMPOSITIONS)
        table.update(decompositions_of_lists())
        table.update(decompositions_of_custom())
        table.update(FAKE_QUANTIZED)
        table[torch.ops.aten.linalg_matrix_exp.default] = matrix_exponential
        table[torch.ops.aten.linalg_pinv.atol_rtol_tensor] = pseudoinverse
        table.update(decompositions_in(exported.graph_module))
        for op in [op for op in table if find(op) is not None]:
            del table[op]
    with within({}):  # `contexts.py` has added the conversions of the calling context
        return retraced(exported, table)


def retraced(exported: ExportedProgram, table: Table) -> ExportedProgram:
    """`exported` made functional, its operators decomposed by `table`. Raises CaptureError where that is impossible."""
    with quiet():
        try:
            return _functional(exported, table)
        except RuntimeError as e:
            if _FROZEN not in str(e):
                raise
        with as_buffers(exported):
            return _functional(exported, table)


_FROZEN = (
    "is mutated in the forward"  # in the message about an updated attribute that is not a buffer
)


def _functional(exported: ExportedProgram, table: Table) -> ExportedProgram:
    try:
        mode = mode_of(exported.state_dict.values())
        with (
            shapes_of_recurrent_layers(),
            checks_have_no_tokens(),
            views_have_stated_shapes(),
            mode,
            _ones_stay_open(exported),
        ):
            return exported.run_decompositions(table)
    except AssertionError as e:
        if "expected compiled_fn" not in str(e):
            raise
        raise CaptureError(
            "the model updates a tensor in place that shares memory with another of its buffers or"
            " arguments: keep only one of the two"
        ) from e
    except RuntimeError as e:
        if _FROZEN in str(e):
            raise
        where, text = origin(str(e)), str(e).strip().partition("\n")[0]
        raise CaptureError(
            "torch.export cannot make the model functional (without in-place updates)"
            + (f", at {where}" if where else "")
            + f": {text}"
        ) from e


@contextmanager
def _ones_stay_open(exported: ExportedProgram) -> Generator[None]:
    """Within, a dynamic size that is 1 in the example counts as any other: PyTorch would broadcast it, and so fix it."""
    given = (n.meta.get("val") for n in exported.graph.find_nodes(op="placeholder"))
    sizes = (n for x in given if isinstance(x, torch.Tensor) for n in x.shape)
    if not any(isinstance(n, torch.SymInt) and n.node.hint == 1 for n in sizes):
        yield
        return
    with patch.object(config, "backed_size_oblivious", True):
        yield


@contextmanager
def as_buffers(exported: ExportedProgram) -> Generator[None, None, None]:
    """Within, attributes that are plain tensors are buffers, which a call may update."""
    specs = exported.graph_signature.input_specs
    old = list(specs)
    specs[:] = (
        InputSpec(InputKind.BUFFER, s.arg, s.target, persistent=False)
        if s.kind is InputKind.CONSTANT_TENSOR
        else s
        for s in old
    )
    try:
        yield
    finally:
        specs[:] = old


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Suppresses the exporter's warnings about itself and about nn.LSTM, and the graph and the traceback that it prints when it fails, as for
    sizes that are tried. Its exception has the reason."""
    shapes, meta = (logging.getLogger(f"torch.{n}") for n in ("fx.experimental.symbolic_shapes", "_subclasses.fake_tensor"))  # fmt: skip
    with (
        warnings.catch_warnings(),
        patch("torch.export._trace.print", _nothing, create=True),
        patch.object(shapes, "disabled", True),
        patch.object(meta, "disabled", True),
    ):
        warnings.filterwarnings("ignore", "The tensor attributes? .*assigned during export")
        for kind in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", kind)
        yield


def _nothing(*_: object, **__: object) -> None:
    """Replaces `print`."""
