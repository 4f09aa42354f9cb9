"""The result of an emitter."""

import msgspec


class Source(msgspec.Struct, frozen=True):
    """text: includes the `device/` headers by name (`"cuda/..."`, `"cpu/..."`).

    entry: the symbol to launch or call. checks: the message of each run-time index check, by number. units: the number of parts in which
    it is compiled, which are linked; part k has MT_UNIT defined as k. 0: as a whole.
    """

    text: str
    entry: str
    checks: tuple[str, ...]
    units: int = 0
