"""`torch.export`, with the user's line where it fails."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.backends import opt_einsum
from torch.export import ExportedProgram
from torch.fx._lazy_graph_module import (
    _use_lazy_graph_module,  # pyright: ignore[reportPrivateUsage] # it has no other name
)
from torch.fx.experimental import _config as config
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.paths import all_paths, single_path
from monotile.frontends.torch.callables import (
    Model,
    arguments,
    as_module,
    check_call,
    check_script,
    keywords_by_name,
    name_of,
    note_parameters,
)
from monotile.frontends.torch.loops.detection import LoopDetectedError
from monotile.frontends.torch.loops.number_slices import SliceLengthError, slices_selected
from monotile.frontends.torch.loops.traced_loop import loops_traced_once
from monotile.frontends.torch.numbers.example_values import (
    arange_reads_tensors,
    exported_with_example_values,
)
from monotile.frontends.torch.numbers.read_numbers import check_numbers
from monotile.frontends.torch.numbers.returned_numbers import ReturnedNumbers
from monotile.frontends.torch.numbers.tensor_fills import tensors_fill
from monotile.frontends.torch.numbers.tensor_indices import check_indexed_copies, tensors_index
from monotile.frontends.torch.origin import raised_at
from monotile.frontends.torch.rewriting.autocast import within
from monotile.frontends.torch.rewriting.contexts import without_contexts
from monotile.frontends.torch.rewriting.decompose import quiet
from monotile.frontends.torch.rewriting.subclasses import advice as of_parameters
from monotile.frontends.torch.rewriting.subclasses import unwrapped
from monotile.frontends.torch.sizes.empty_sizes import some_elements
from monotile.frontends.torch.sizes.examples import with_sizes_of_two
from monotile.frontends.torch.sizes.guards import recorded_guards
from monotile.frontends.torch.sizes.quotients import quotients_are_simple
from monotile.frontends.torch.sizes.range_export import exported_for_range, is_violation
from monotile.frontends.torch.sizes.symbolic_builtins import functions_take_sizes
from monotile.frontends.torch.sizes.symbolic_keys import SymbolicKeys
from monotile.frontends.torch.sizes.view_shapes import views_have_stated_shapes
from monotile.frontends.torch.tracing.as_eager import exported_as_eager
from monotile.frontends.torch.tracing.assigned_data import assigned_data
from monotile.frontends.torch.tracing.assigned_tensors import assignments_are_updates
from monotile.frontends.torch.tracing.attribute_updates import attribute_updates_are_traced
from monotile.frontends.torch.tracing.batch_statistics import BATCH_STATISTICS
from monotile.frontends.torch.tracing.bincount import BINCOUNT
from monotile.frontends.torch.tracing.byte_masks import BYTE_MASKS
from monotile.frontends.torch.tracing.chunks import CHUNKS
from monotile.frontends.torch.tracing.comparisons import comparisons_are_traced
from monotile.frontends.torch.tracing.complex_arguments import real_arguments
from monotile.frontends.torch.tracing.containers import distinct_tensors, registered_dataclasses
from monotile.frontends.torch.tracing.derivatives import Exporter
from monotile.frontends.torch.tracing.effect_tokens import checks_have_no_tokens
from monotile.frontends.torch.tracing.extrema import extrema_as_python
from monotile.frontends.torch.tracing.failed_calls import calls_may_fail
from monotile.frontends.torch.tracing.flex_attention import flex_attention_is_traced
from monotile.frontends.torch.tracing.half_fourier import HALF_FOURIER
from monotile.frontends.torch.tracing.inference_mode import mode_of
from monotile.frontends.torch.tracing.least_squares import LEAST_SQUARES
from monotile.frontends.torch.tracing.mask_hints import without_hints
from monotile.frontends.torch.tracing.module_to import modules_convert
from monotile.frontends.torch.tracing.next_call import NextCall
from monotile.frontends.torch.tracing.overrides import FunctionOverrides
from monotile.frontends.torch.tracing.packed_sequences import traced_packed_sequences
from monotile.frontends.torch.tracing.recurrent_shapes import shapes_of_recurrent_layers
from monotile.frontends.torch.tracing.restored_state import state_restored
from monotile.frontends.torch.tracing.size_arguments import SIZE_ARGUMENTS
from monotile.frontends.torch.tracing.sparse_tensors import (
    SPARSE,
    is_sparse,
    sparse_matrices_are_traced,
)
from monotile.frontends.torch.tracing.stack_traces import frames_written_once
from monotile.frontends.torch.tracing.type_and_len import builtins_as_eager
from monotile.frontends.torch.training import note_mode
from monotile.wrapped import NESTED, is_nested

Exported = ExportedProgram
_EXPLAINED = "Explanation: "  # in messages of Dynamo, which traces the bodies of loops and branches

# Signs of numbers from tensors; the latter of a comparison with an infinity.
_DATA_DEPENDENT = ("data-dependent", "sympy expression is NaN")

# What a message of torch.export means for the model, and what to do.
_OF_DATA = (
    "control flow or a shape of the model depends on a tensor's values: express such choices with"
    " tensors (torch.where), move them out of the model, or let"
    ' torch.compile(model, backend="monotile") split it there'
)
_ADVICE = (
    ("data-dependent", _OF_DATA),
    ("Unknown symbol zuf", _OF_DATA),  # a float that PyTorch before 2.13 has read from a tensor
    (
        ".numpy() is not supported",
        "NumPy computes nothing that a kernel could: write it with tensors, or move it out of the model, or let"
        ' torch.compile(model, backend="monotile") split it there',
    ),
    (
        "register a pytree",
        "the model returns an object that PyTorch cannot flatten: return tensors in tuples, lists or"
        " dicts (for a Hugging Face model, pass use_cache=False)",
    ),
    (
        "Stacked'",
        "the model returns a list whose length depends on a size of dynamic_shapes: return torch.stack of it",
    ),
    (
        "Unsupported input type",
        "pass the tensors that it holds, in tuples, lists or dicts, or let the model hold it",
    ),
    ("_nested_tensor", NESTED),
    (
        "__obj_flatten__",
        "the model holds weights that torch.ao.quantization has packed, which torch.export cannot read: quantize it"
        " with torchao's quantize_ or monotile.pack",
    ),
    (
        "specialized it to be a constant",
        "the model takes another path for this number, or supports no other: give an example of another size, or leave the size out of dynamic_shapes",
    ),
    (
        "DynamicOutputShapeException: ",
        "the operator's shapes depend on data: move it out of the model, or write it with operators whose shapes do not",
    ),
    (
        "UnsupportedOperatorException: ",
        "PyTorch cannot trace the operator, or not for a symbolic size: write it with other operators, move it out of the model, or leave the size"
        " out of dynamic_shapes",
    ),
    (
        "Unsupported dtype BFloat16",
        "PyTorch has no Fourier transform of bfloat16: transform x.float(), and convert the result",
    ),
)


def export(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    results: Callable[[Any], Any] | None = None,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """`torch.export` of `model`, which may be a function or an ExportedProgram. The result has only plain tensors. Raises CaptureError with the user's line.

    dynamic_shapes: as `torch.export` takes it. results: flattens the model's results where they are containers that PyTorch does not know.
    """
    model = as_module(model)
    if isinstance(model, ExportedProgram):
        return _plain(without_contexts(model))
    args = arguments(args)
    if any(map(is_nested, pytree.tree_leaves((args, kwargs)))):
        raise CaptureError(f"{name_of(model)} takes a nested tensor: {NESTED}")
    if any(map(is_sparse, pytree.tree_leaves((args, kwargs)))):
        raise CaptureError(f"{name_of(model)} takes a sparse tensor: {SPARSE}")
    with real_arguments(model, args, kwargs or {}) as call:
        return _traced(model, *call, results, dynamic_shapes)


def _traced(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results: Callable[[Any], Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    """As `export`, of a module whose arguments are real."""
    known = registered_dataclasses(model, args, kwargs)
    mode = mode_of([*model.parameters(), *model.buffers(), *pytree.tree_leaves((args, kwargs))])
    keys, numbers = SymbolicKeys(), ReturnedNumbers()
    with quiet(), known, sparse_matrices_are_traced(model), _traceable(model), _giving(model, results), mode, keys.recorded(), numbers.recorded(model), recorded_guards() as found, \
            keywords_by_name(model, kwargs, dynamic_shapes) as dynamic_shapes:  # fmt: skip
        try:
            args, kwargs = distinct_tensors(model, args, kwargs)
            following = NextCall(model)
            with following.recorded():
                exported, again = _of_example(model, args, kwargs, dynamic_shapes)
                following.check(None if dynamic_shapes else exported, partial(again, None))
            keys.check(exported, model, partial(again, dynamic_shapes))
            exported = _plain(exported)
            found.keep(exported)
            numbers.keep(exported.graph_module)
            note_mode(exported.graph_module, training=model.training)
            note_parameters(exported.graph_module, model)
            return exported
        except CaptureError as e:
            raise CaptureError(f"{name_of(model)} cannot be captured: {e}") from e
        except Exception as e:
            if isinstance(e, TypeError):
                check_script(model)
                check_call(model, args, kwargs)
            text = str(e).strip()
            where = raised_at(e) or (found.equal if is_violation(e) else "")
            reason = _reason(text)
            advice = "".join(
                f". {more[0].upper()}{more[1:]}"
                for sign, more in _ADVICE
                if sign in f"{type(e).__name__}: {text}"
            )
            advice += keys.advice()
            raise CaptureError(
                f"torch.export cannot capture {name_of(model)}"
                + (f", at {where}" if where else "")
                + f": {type(e).__name__}: {reason}{advice}{of_parameters(model)}"
            ) from e


def _plain(exported: ExportedProgram) -> ExportedProgram:
    with within({}):  # conversions have become operators
        return unwrapped(exported)


def _reason(text: str) -> str:
    """The first line of a message, or its part about dimensions."""
    lines = [x.strip() for x in text.splitlines()]
    if "Constraints violated" not in text:
        if text.startswith("This higher order operator doesn't work unless"):
            said = [x for x in lines if x.startswith(_EXPLAINED)] + list(filter(None, lines[1:]))
            lines = [x.removeprefix(_EXPLAINED) for x in said] or lines
        return (lines or [""])[0] or "no reason given"
    said = [
        x.removeprefix("- ").split(". If you're")[0]
        for x in lines
        if x.startswith("- ") or " = Dim(" in x
    ]
    more = [] if said else [lines[0].split(". ")[0]]
    return "the model does not take all sizes of dynamic_shapes: " + "; ".join(dict.fromkeys([*said, *more]))  # fmt: skip


def _of_example(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
) -> tuple[ExportedProgram, Callable[[Any], ExportedProgram]]:
    """The result of `torch.export`, and a function that repeats the export with the given dynamic shapes."""
    again = partial(_exported, model, args, kwargs)
    try:
        return again(dynamic_shapes), again
    except Exception as e:
        call = with_sizes_of_two(model, args, kwargs, dynamic_shapes) if dynamic_shapes else None
        if call is None or not is_violation(e.__cause__ or e):
            raise
    again = partial(_exported, model, *call)
    return again(dynamic_shapes), again


def _exported(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
) -> ExportedProgram:
    """The result of `torch.export`, with branches where Python reads a tensor's value, or else with the values of the example arguments."""

    exporter = Exporter(model)

    def within_sizes(shapes: Any, deferred: bool) -> ExportedProgram:
        # For each trace: one that failed may have changed the model too.
        oblivious = patch.object(config, "backed_size_oblivious", deferred)
        # Otherwise PyTorch generates Python code six times that nothing runs.
        with state_restored(model), oblivious, some_elements(), _einsum_of(shapes), _use_lazy_graph_module(True):  # fmt: skip
            return exporter(
                args,
                kwargs,
                dynamic_shapes=shapes,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=deferred,
            )

    def run() -> ExportedProgram:
        found = without_contexts(exported_for_range(dynamic_shapes, within_sizes))
        check_numbers(found)
        check_indexed_copies(found)
        return found

    try:
        return exported_as_eager(lambda: _with_branches(run))
    except Exception as e:
        found = exported_with_example_values(model, args, kwargs, run, _with_branches)
        if found is None and isinstance(e, SliceLengthError):
            with slices_selected(), suppress(Exception):
                found = _with_branches(run)
        if found is None:
            raise
        return found


@contextmanager
def _einsum_of(shapes: Any) -> Generator[None]:
    """Within, `torch.einsum` contracts its operands from left to right if `shapes` are dynamic: opt_einsum turns sizes into numbers."""
    if not shapes:
        yield
        return
    with patch.object(opt_einsum, "is_available", lambda: False):
        yield


def _with_branches(run: Callable[[], ExportedProgram]) -> ExportedProgram:
    with loops_traced_once() as loops:
        try:
            return _with_paths(run)
        except Exception:
            if not loops.once:
                raise
    return _with_paths(run)


def _with_paths(run: Callable[[], ExportedProgram]) -> ExportedProgram:
    try:
        return single_path(run)
    except LoopDetectedError:
        pass
    except Exception as e:
        if not any(sign in str(e) for sign in _DATA_DEPENDENT):
            raise
    return all_paths(run)


@contextmanager
def _traceable(model: torch.nn.Module) -> Generator[None]:
    """Within, PyTorch traces models that it otherwise does not trace, or traces wrongly."""
    with (
        frames_written_once(),
        without_hints(),
        shapes_of_recurrent_layers(),
        calls_may_fail(),
        traced_packed_sequences(),
        tensors_fill(),
        arange_reads_tensors(),
        attribute_updates_are_traced(),
        comparisons_are_traced(),
        extrema_as_python(),
        flex_attention_is_traced(),
        FunctionOverrides(
            HALF_FOURIER,
            BINCOUNT,
            BYTE_MASKS,
            CHUNKS,
            SIZE_ARGUMENTS,
            LEAST_SQUARES,
            assigned_data(model),
            {} if model.training else BATCH_STATISTICS,
        ),
        tensors_index(),
        checks_have_no_tokens(),
        modules_convert(),
        builtins_as_eager(model),
        functions_take_sizes(),
        assignments_are_updates(model),
        views_have_stated_shapes(),
        quotients_are_simple(),
    ):
        yield


@contextmanager
def _giving(
    model: torch.nn.Module, results: Callable[[Any], Any] | None
) -> Generator[None, None, None]:
    """Within, `model` returns its results transformed by `results`."""
    if results is None:
        yield
        return
    hook = model.register_forward_hook(lambda module, args, found: results(found))
    try:
        yield
    finally:
        hook.remove()
