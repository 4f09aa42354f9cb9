"""What an emitter gives."""

import msgspec


class Source(msgspec.Struct, frozen=True):
    """text: one translation unit that includes the `device/` headers by name (`"cuda/..."`, `"cpu/..."`).

    entry: the symbol to launch or call. checks: the message of each run-time index check, by number.
    apart: whether each of its functions is to be compiled by itself.
    """

    text: str
    entry: str
    checks: tuple[str, ...]
    apart: bool = False
