"""The job that a benchmark process receives, and the outcome that it returns."""

from typing import Any

import msgspec

from monotile.config import Options

OURS, PROFILE = "monotile", "profile"
ARRANGED = "parameters arranged"  # of ours


class Network(msgspec.Struct, frozen=True):
    """A model to compare. name: for reports. spec, dtype, arguments: of `runtime.models.load_model`.

    plain: "module:function"; function(model) returns the same network written plainly, with the model's weights. It takes the
    model's arguments and returns the tensors of its results in their order. Rivals are timed on both.
    xla: "module:function"; function(model, args, kwargs) returns the network in JAX as (function, parameters, inputs), a pure
    function of the other two. images: rivals are also timed in channels-last memory format.
    """

    name: str
    spec: str
    dtype: str | None = None
    arguments: dict[str, Any] = {}
    plain: str | None = None
    xla: str | None = None
    images: bool = False

    def __str__(self) -> str:
        arguments = [f"{k}={v}" for k, v in self.arguments.items()]
        return ", ".join([self.name, self.dtype or "its own dtypes", *arguments])


class Job(msgspec.Struct, frozen=True):
    """One way to run a network. way: OURS, PROFILE or a rival of `compare.rivals`. form: one of `compare.forms`.
    seconds: time to spend on timing. folder: for the files of a profile."""

    network: Network
    way: str
    form: str = "module"
    target: str = "auto"
    options: Options = Options()
    seconds: float = 0.5
    folder: str | None = None

    @property
    def name(self) -> str:
        if self.way == OURS and self.options.arrange_parameters:
            return f"{self.way}, {ARRANGED}"
        return self.way if self.form == "module" else f"{self.form} {self.way}"


class Bound(msgspec.Struct, frozen=True):
    """The minimum bytes and operations of a call, and the seconds that they take at the target's peak rates."""

    moved: int
    operations: int
    seconds: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: call: an ordinary call; graph: in a CUDA graph (XLA: in a loop on the device); compile: to the first result;
    again: the same with the disk cache. error: relative to float64, in the norm. kernels: launches per call. failure: why there
    is no time. absent: it is not installed or has no version of this network. note: a remark for the reader."""

    call: float | None = None
    graph: float | None = None
    samples: int = 0
    compile: float | None = None
    again: float | None = None
    error: float | None = None
    kernels: int | None = None
    bound: Bound | None = None
    device: str = ""
    target: str = ""
    versions: dict[str, str] = {}
    note: str = ""
    failure: str | None = None
    absent: bool = False

    @property
    def best(self) -> float | None:
        """The faster of call and graph."""
        times = [t for t in (self.call, self.graph) if t is not None]
        return min(times, default=None)


class Absent(Exception):
    """A rival is not available, or has no such network."""


def first_line(problem: BaseException) -> str:
    """The kind of the problem and its first line; of OpenVINO's, which begin with places in its sources, the last."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [""]
    said = lines[-1 if lines[0].startswith(("Check ", "Exception from ")) else 0]
    return f"{type(problem).__name__}: {said}"
