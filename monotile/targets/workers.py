"""The number of workers of a launch."""

from monotile.config import Options
from monotile.errors import TargetError


def chosen_workers(options: Options, available: int, of: str) -> int:
    """`options.workers`, or all that are available. of: what they are, in words. Raises TargetError for more than these."""
    wanted = options.workers
    if wanted is None:
        return available
    if not 1 <= wanted <= available:
        raise TargetError(
            f"Options(workers={wanted}): all workers run at once, and there are {available} {of}"
        )
    return wanted
