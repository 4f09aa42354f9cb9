"""What is asked of a process, and what it answers."""

from typing import Any

import msgspec

from monotile.config import Options

OURS, PROFILE, XLA = "monotile", "profile", "xla"
ARRANGED = "parameters arranged"  # of ours


class Network(msgspec.Struct, frozen=True):
    """A model to compare. name: as it is reported. spec, dtype, arguments: as `runtime.models.load_model` takes them.

    plain: "module:function" where function(model) is the same network written plainly, with the model's weights, which
    takes the model's arguments and gives the tensors of its results in their order; the rivals get both. xla: "module:function" where
    function(model, args, kwargs) is the network in JAX: (function, parameters, inputs), pure, called with the two.
    images: the rivals get it with its channels last too.
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
    """One way to run a network. way: OURS, PROFILE, XLA or a rival of `compare.rivals`. form: of the network, of `compare.forms`.
    seconds: to time for. folder: where pictures of a profile go."""

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
    """The least work of a call, in bytes and operations, and the seconds that it takes the target."""

    moved: int
    operations: int
    seconds: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: call as it is called, graph within a CUDA graph (of XLA: a loop on the device), compile to the first result, again the
    same from the disk. error: relative to float64, in the norm. kernels: launches a call. failure: why there is no time. note: what a reader must know. absent: the
    failure is that it is not installed, or not meant for this."""

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
        """The faster of its two times."""
        times = [t for t in (self.call, self.graph) if t is not None]
        return min(times, default=None)


class Absent(Exception):
    """A rival is not there."""
