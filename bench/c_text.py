"""C and C++ text as tokens, so that two sources can be compared whatever their names, comments and spaces."""

import hashlib
import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
      (?P<nothing> \s+ | //[^\n]* | /\*.*?\*/ )
    | (?P<header>  (?<=\#include[ ]) [<"][^>"\n]*[>"] )
    | (?P<string>  "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<number>  \.?\d (?: [eEpP][+-] | [\w.] )* )
    | (?P<name>    [A-Za-z_]\w* )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
# Names with a meaning of the language's own. So have those that begin with two underscores.
_KEYWORDS = frozenset(
    "alignas alignof asm auto bool break case catch char class const constexpr const_cast continue decltype default delete do double"
    " else enum explicit extern false float for friend goto if inline int int8_t int16_t int32_t int64_t intptr_t long mutable namespace"
    " new noexcept nullptr operator private protected public register reinterpret_cast restrict return short signed size_t sizeof static"
    " static_assert static_cast struct switch template this throw true try typedef typename uint8_t uint16_t uint32_t uint64_t uintptr_t"
    " union unsigned using virtual void volatile while _Alignas _Atomic _Bool _Static_assert define elif endif ifdef ifndef include once"
    " pragma undef unroll omp simd reduction blockDim blockIdx gridDim threadIdx".split()
)
_FUNCTION = re.compile(r"^[A-Za-z_].*\)(?: const)? \{$", re.MULTILINE)


def tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Each token but comments and spaces, and whether it is a name that could as well be another: a header's too."""
    for found in _TOKEN.finditer(text):
        kind, token = found.lastgroup, found.group()
        if kind == "name":
            yield token, token not in _KEYWORDS and not token.startswith("__")
        elif kind != "nothing":
            yield token, kind == "header"


def structure(text: str) -> str:
    """A sha256 in which every name is the number of its first appearance."""
    numbers: dict[str, int] = {}
    made = hashlib.sha256()
    for token, free in tokens(text):
        word = f"@{numbers.setdefault(token, len(numbers))}" if free else token
        made.update(word.encode() + b"\n")
    return made.hexdigest()


def renamed(before: str, after: str) -> dict[str, str]:
    """The names of `before` that are others in `after`, a text of the same structure."""
    pairs = zip(tokens(before), tokens(after), strict=True)
    return {old: new for (old, free), (new, _) in pairs if free and old != new}


def functions(text: str) -> int:
    """How many are defined at the outermost level, by the emitters' own layout."""
    return len(_FUNCTION.findall(text))
