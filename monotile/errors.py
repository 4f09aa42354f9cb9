"""All exceptions of Monotile.

`MonotileError`: the input cannot be compiled or run; the message says what is wrong, where, and what to do.
`InternalError`: a bug in Monotile; please report it.
"""


class MonotileError(Exception):
    """Base class of errors that the user can act on."""


class UnsupportedOperatorError(MonotileError):
    """The model uses unsupported operators; the message lists each with its source line."""


class CaptureError(MonotileError):
    """The model cannot be captured as a static graph: training mode, data-dependent shapes, ..."""


class InputError(MonotileError, ValueError):
    """The arguments of a call differ from the compiled ones in number, structure, shape, dtype or device."""


class IndexOutOfRangeError(MonotileError, IndexError):
    """An index computed from the inputs is out of range for the tensor that it indexes."""


class TargetError(MonotileError):
    """The target is unknown, or this machine cannot run it: no GPU, driver too old, ..."""


class BuildError(MonotileError):
    """The C compiler or NVRTC rejected the generated source; the message contains its log."""


class ScheduleError(MonotileError):
    """The Program cannot be scheduled for this target: a buffer does not fit, data-dependent control flow, ..."""


class PlanError(MonotileError):
    """The given Plan is invalid, or is not for this model, target and number of workers."""


class ChoiceError(MonotileError):
    """The given choices are invalid, or name an option that does not exist."""


class InternalError(Exception):
    """Monotile violated one of its own invariants. This is a bug in Monotile: please report it."""


class VerificationError(InternalError):
    """A Program or a Plan is invalid."""
