"""The result of a build."""

import msgspec


class Binary(msgspec.Struct, frozen=True):
    """kind: "cuda" or "cpu". image: the cubin, or the shared object. ptx: "" on the CPU.

    compiler: a description of the compiler; log: its output (warnings). cuda: NVRTC's CUDA version, (0, 0) on the CPU. processor: a hash
    of the CPU model it is for, "" for CUDA.
    """

    kind: str
    image: bytes
    ptx: str
    compiler: str
    cuda: tuple[int, int] = (0, 0)
    processor: str = ""
    log: str = ""

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(content: bytes | None) -> "Binary | None":
        """The Binary of `encode`; None for None and for data written by another version of Monotile."""
        if content is None:
            return None
        try:
            return msgspec.msgpack.decode(content, type=Binary)
        except msgspec.DecodeError:
            return None


def excerpt(source: str, lines: list[int], around: int = 2) -> str:
    """The source lines (counted from 1) that a compiler's log names, with `around` lines of context.

    At most the first five places: one mistake of an emitter tends to repeat.
    """
    text = source.splitlines()
    wanted: set[int] = set()
    marked = list(dict.fromkeys(n for n in lines if 1 <= n <= len(text)))[:5]
    for n in marked:
        wanted.update(range(max(1, n - around), min(len(text), n + around) + 1))
    return "\n".join(f"{'>' if n in marked else ' '}{n:6d} | {text[n - 1]}" for n in sorted(wanted))
