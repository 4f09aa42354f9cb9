"""Every error Monotile raises on purpose.

`MonotileError` is a mistake in what the compiler was given: its message says what, where and what
to do. `InternalError` is a mistake of ours: please report it.
"""


class MonotileError(Exception):
    """Base of every error that the user can act on."""


class UnsupportedOperatorError(MonotileError):
    """The model uses operators that Monotile does not lower; lists each with the user's source line."""


class CaptureError(MonotileError):
    """The model cannot be captured as a static graph (training mode, data-dependent shapes, ...)."""


class InputError(MonotileError, ValueError):
    """A call's arguments do not fit what was compiled: number, structure, shape, dtype or device."""


class IndexOutOfRangeError(MonotileError, IndexError):
    """A value of the inputs, used as an index, lies outside the tensor that it indexes."""


class TargetError(MonotileError):
    """The target is unknown, or this machine cannot run it (no GPU, driver too old)."""


class BuildError(MonotileError):
    """The C compiler or NVRTC refused the generated source; the message holds its log."""


class ScheduleError(MonotileError):
    """No legal Plan exists for this program on this target (a buffer cannot fit, say)."""


class PlanError(MonotileError):
    """A Plan that was given is none, or is not one for this model, target and number of workers."""


class InternalError(Exception):
    """Monotile broke one of its own invariants. The user did nothing wrong: please report it."""


class VerificationError(InternalError):
    """A Program or a Plan is not well formed."""
