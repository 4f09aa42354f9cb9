"""One operator of the database through Monotile: what became of each of its samples."""

import gc
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch.utils._pytree as pytree

import monotile
from bench.operators.blame import blame, incomparable
from bench.operators.compare import mismatch
from bench.operators.samples import Calls, Sample, excluded, samples, spread
from monotile.errors import CaptureError, InputError, MonotileError, UnsupportedOperatorError
from monotile.frontends.torch.capture import obstacles
from monotile.frontends.torch.export import export

VERDICTS = (
    "CRASHED",
    "WRONG",
    "refused",
    "compiled",
    "correct",
    "excluded",
)  # the first that occurs counts


class Result(msgspec.Struct, frozen=True):
    """What became of an operator: its verdict, how many samples had which, and why those not correct."""

    name: str
    verdict: str
    counts: dict[str, int]
    reasons: dict[str, str]  # by verdict, the first one
    target: str
    torch: str
    kernels: int = 0
    seconds: float = 0.0
    untried: int = 0  # samples that a limit left out


@dataclass(frozen=True, slots=True)
class Settings:
    """target: as `monotile.compile` has it; one with an architecture is only compiled for.
    batch: samples in a kernel. limit: samples of an operator, spread evenly over all of them.
    """

    target: str = "cpu"
    batch: int = 64
    limit: int | None = None

    @property
    def device(self) -> str:
        return "cuda" if self.target in ("cuda", "auto") else "cpu"

    @property
    def runs(self) -> bool:
        return ":" not in self.target


_PROBES = 8
_PLACE = ", at samples.py"  # in messages; every operator is called from there

Found = tuple[str, str]  # a sample's verdict, and why
_OPEN = ("", "")  # of a sample that got no verdict for the sake of others in its graph


def check(name: str, entry: Any, settings: Settings) -> Result:
    """Compile all samples of an operator, as few kernels as can be, run them, and compare."""
    start = time.perf_counter()
    why = excluded(name, settings.device)
    if why:
        return result(name, settings, [("excluded", why)])
    found: list[Found] = []
    kernels = 0
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            every = samples(entry, settings.device)
        except Exception as e:  # whatever the database raises: there is nothing to compile
            return result(name, settings, [("excluded", f"no samples: {_line(e)}")])
        given = spread(every, settings.limit)
        for first in range(0, len(given), settings.batch):
            verdicts, made = _batch(given[first : first + settings.batch], settings)
            found += verdicts
            kernels += made
    seconds = round(time.perf_counter() - start, 2)
    done = result(name, settings, found, kernels, seconds)
    return msgspec.structs.replace(done, untried=len(every) - len(given))


def result(
    name: str, settings: Settings, found: Sequence[Found], kernels: int = 0, seconds: float = 0.0
) -> Result:
    """The Result of an operator whose samples came to `found`."""
    counts = {v: n for v in VERDICTS if (n := sum(w == v for w, _ in found))}
    verdict = next((v for v in VERDICTS if v in counts), "excluded")
    reasons = {v: why for v, why in reversed(found) if why}
    version = torch.__version__.partition("+")[0]
    return Result(name, verdict, counts, reasons, settings.target, version, kernels, seconds)


def _batch(given: Sequence[Sample], settings: Settings) -> tuple[list[Found], int]:
    """The samples' verdicts and how many kernels it took: one, or where that fails those of both halves."""
    found, made = together(given, settings)
    gc.collect()
    if isinstance(found, list):
        left = [k for k, f in enumerate(found) if f == _OPEN]
        again, more = _batch([given[k] for k in left], settings) if left else ([], 0)
        for k, f in zip(left, again, strict=True):
            found[k] = f
        return found, made + more
    if len(given) == 1:
        return [found], made
    if found[0] in ("excluded", "refused") and len(given) > 2 * _PROBES:
        # Mostly that holds for every sample, and finding it out one by one takes minutes.
        probed = [together([given[k * len(given) // _PROBES]], settings)[0] for k in range(_PROBES)]
        if all(isinstance(p, tuple) and p[0] == found[0] for p in probed):
            return [found] * len(given), made
    half = len(given) // 2
    left, right = _batch(given[:half], settings), _batch(given[half:], settings)
    return left[0] + right[0], left[1] + right[1]


def together(given: Sequence[Sample], settings: Settings) -> tuple[list[Found] | Found, int]:
    """What each of the samples came to in one kernel, or what all of them came to as there is none."""
    model, args = Calls(given).eval(), tuple(s.tensors for s in given)
    try:
        eager = model(*args)
    except Exception as e:
        return ("excluded", f"PyTorch refuses the sample: {_line(e)}"), 0
    other = [k for k, y in enumerate(eager) if not any(map(torch.is_tensor, pytree.tree_leaves(y)))]
    if other:
        return _apart(len(given), "excluded", dict.fromkeys(other, "its result is no tensor")), 0
    try:
        exported = export(model, args)
    except CaptureError as e:
        return ("excluded", f"torch.export refuses it: {type(e.__cause__).__name__}"), 0
    if outside := blame(exported, incomparable(exported), eager):
        return _apart(len(given), "excluded", outside), 0
    try:
        fast = monotile.compile(
            exported, target=settings.target, options=monotile.Options(cache=False, tf32=False)
        )
        if not settings.runs:
            return [("compiled", "")] * len(given), fast.kernels
        got = fast(*args)
        if settings.device == "cuda":
            torch.cuda.synchronize()
    except UnsupportedOperatorError as e:
        plain, problems = obstacles(exported)
        if refused := blame(plain, problems, eager):
            return _apart(len(given), "refused", refused), 0
        return ("refused", str(e).splitlines()[1].strip().partition(_PLACE)[0]), 0
    except CaptureError as e:
        return ("excluded", _line(e)), 0
    except InputError as e:  # samples with arguments on two devices
        return ("refused", _line(e)), 0
    except MonotileError as e:
        return ("CRASHED", f"{type(e).__name__}: {_line(e)}"), 0
    except Exception as e:
        return ("CRASHED", _innermost(e)), 0
    return [
        ("WRONG", problem) if (problem := mismatch(f, y, _exact(s, y))) else ("correct", "")
        for s, f, y in zip(given, got, eager, strict=True)
    ], fast.kernels


def _exact(sample: Sample, eager: Any) -> Any:
    """PyTorch's result in float64, if there is one."""
    try:
        wide = [t.double() if t.dtype == torch.float32 else t for t in sample.tensors]
        return sample.call(wide)
    except Exception:  # the sample names dtypes itself
        return eager


def _apart(count: int, verdict: str, blamed: Mapping[int, str]) -> list[Found]:
    """The verdict on those of `count` samples that are blamed; the others are open."""
    found = {k: (verdict, why.partition(_PLACE)[0]) for k, why in blamed.items()}
    return [found.get(k, _OPEN) for k in range(count)]


def _line(e: Exception) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0].partition(_PLACE)[0]


def _innermost(e: Exception) -> str:
    frames = [f for f in traceback.extract_tb(e.__traceback__) if "monotile" in f.filename]
    where = (
        f" at {frames[-1].filename.rpartition('monotile/')[2]}:{frames[-1].lineno}"
        if frames
        else ""
    )
    return f"{type(e).__name__}: {_line(e)}{where}"
