"""Reading launchers: which `extern "C"` functions a source defines, and over which types.

Only what crosses the C ABI is understood: pointers to numbers and plain numbers. The preprocessor is not run, so macros
stay as they are written; directives are skipped, and so is what stands under a literal `#if 0`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cuda_agent.errors import CandidateError

# C type → torch dtype of what a pointer to it points at; "any" is unchecked.
POINTEES = {
    "float": "float32",
    "double": "float64",
    "__half": "float16",
    "half": "float16",
    "_Float16": "float16",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__bf16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
    "int8_t": "int8",
    "int16_t": "int16",
    "int32_t": "int32",
    "int64_t": "int64",
    "uint8_t": "uint8",
    "uint16_t": "uint16",
    "uint32_t": "uint32",
    "uint64_t": "uint64",
    "bool": "bool",
    "void": "any",
}

# C type of a scalar → its ctypes name.
SCALARS = {
    "float": "c_float",
    "double": "c_double",
    "int8_t": "c_int8",
    "int16_t": "c_int16",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "uint8_t": "c_uint8",
    "uint16_t": "c_uint16",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
    "bool": "c_bool",
}

# Other spellings, words sorted: `unsigned long int` and `long unsigned` are one type.
_ALIASES = {
    "char": "int8_t",
    "char signed": "int8_t",
    "char unsigned": "uint8_t",
    "short": "int16_t",
    "short unsigned": "uint16_t",
    "int": "int32_t",
    "signed": "int32_t",
    "unsigned": "uint32_t",
    "long": "int64_t",
    "long long": "int64_t",
    "long unsigned": "uint64_t",
    "long long unsigned": "uint64_t",
    "size_t": "uint64_t",
    "ptrdiff_t": "int64_t",
    "ssize_t": "int64_t",
    "intptr_t": "int64_t",
    "uintptr_t": "uint64_t",
    "cudaError_t": "int32_t",
}
_INTEGER_WORDS = {"char", "short", "int", "long", "signed", "unsigned"}
_QUALIFIERS = {"const", "volatile", "restrict", "__restrict__", "__restrict", "register"}
_NOT_EXPORTED = {"static", "inline", "__inline__", "__forceinline__", "__global__", "__device__", "typedef", "using",
                 "struct", "class", "union", "enum", "namespace", "template", "constexpr"}  # fmt: skip
_TAKEN = {"torch", "device", "status", "ctypes"}  # names that the body of a generated function uses
_STREAMS = {"cudaStream_t", "CUstream"}

_TOKEN = re.compile(
    r"""
    (?P<directive>(?<![^\n])[ \t]*\#(?:\\\r?\n|/\*.*?\*/|[^\n])*)
  | (?P<skip>\n|[^\S\n]+|//(?:\\\r?\n|[^\n])*|/\*.*?\*/)
  | (?P<string>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
  | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<punct>::|->|\.\.\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LITERAL = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?)[fFlLuU]*")
_IF = re.compile(r"#\s*if\s*(0|false)\s*(//.*|/\*.*)?$")


class Token(NamedTuple):
    text: str
    line: int


@dataclass(frozen=True)
class Parameter:
    """name: a valid Python name. type: the normalised C type without qualifiers, `float` for `const float*`.
    pointer: whether it is passed by address. stream: whether the caller's CUDA stream is supplied for it.
    default: the Python literal of a default argument."""

    name: str
    type: str
    pointer: bool = False
    stream: bool = False
    default: str | None = None

    @property
    def dtype(self) -> str:
        """torch dtype name behind a pointer; `any` for void."""
        return POINTEES[self.type]


@dataclass(frozen=True)
class Launcher:
    """One `extern "C"` function. text: its prototype in one line, as written. line: counted from 1."""

    name: str
    parameters: tuple[Parameter, ...]
    returns_status: bool
    source: str
    line: int
    text: str

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """What the Python caller passes: all but the stream."""
        return tuple(p for p in self.parameters if not p.stream)


def read_launchers(source: str, path: str) -> list[Launcher]:
    """The launchers that `source` defines, in order; not what has no body, is `static`, `inline` or a device function.
    Raises CandidateError, with `path` and line, for a launcher that cannot be bound."""
    tokens = list(_tokens(source))
    found: dict[str, Launcher] = {}
    for declaration in _extern_c(tokens, path):
        launcher = _launcher(declaration, path)
        if launcher is None:
            continue
        earlier = found.setdefault(launcher.name, launcher)
        if earlier.parameters != launcher.parameters or earlier.returns_status != launcher.returns_status:
            raise CandidateError(
                f"{path}:{launcher.line}: {launcher.name} is defined again with another prototype (first in line "
                f"{earlier.line}); rename one of them."
            )
    return list(found.values())


def _tokens(source: str) -> Iterator[Token]:
    line, off = 1, 0  # off: depth of conditionals inside `#if 0`
    for match in _TOKEN.finditer(source):
        text, kind = match.group(), match.lastgroup
        if kind == "delimiter":
            kind = "string"
        if match.group("directive") is not None:
            off = _conditional(text.strip(), off)
        elif kind != "skip" and text != "\\" and not off:
            yield Token(text, line)
        line += text.count("\n")


def _conditional(directive: str, off: int) -> int:
    word = re.match(r"#\s*(\w*)", directive)
    name = word.group(1) if word else ""
    if off:
        if name in ("if", "ifdef", "ifndef"):
            return off + 1
        if name == "endif" or (off == 1 and name in ("else", "elif")):
            return off - 1
        return off
    return 1 if _IF.match(directive) else 0


def _extern_c(tokens: list[Token], path: str) -> Iterator[list[Token]]:
    """Each declaration with C linkage as its tokens up to and including the closing `;`, or `{` of a body."""
    at = 0
    while at + 1 < len(tokens):
        if tokens[at].text == "extern" and tokens[at + 1].text == '"C"':
            at += 2
            if at < len(tokens) and tokens[at].text == "{":
                end = _closing(tokens, at, path)
                at += 1
                while at < end:
                    declaration, at = _declaration(tokens, at, end, path)
                    yield declaration
            elif at < len(tokens):
                declaration, at = _declaration(tokens, at, len(tokens), path)
                yield declaration
        else:
            at += 1


def _declaration(tokens: list[Token], at: int, end: int, path: str) -> tuple[list[Token], int]:
    start = at
    while at < end and tokens[at].text not in (";", "{"):
        at = _closing(tokens, at, path) + 1 if tokens[at].text == "(" else at + 1
    if at >= end:
        return tokens[start:end], end
    after = _closing(tokens, at, path) + 1 if tokens[at].text == "{" else at + 1
    return tokens[start : at + 1], after


def _closing(tokens: list[Token], at: int, path: str) -> int:
    opening = tokens[at].text
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for index in range(at, len(tokens)):
        text = tokens[index].text
        depth += (text == opening) - (text == closing)
        if depth == 0:
            return index
    raise CandidateError(f"{path}:{tokens[at].line}: the {opening!r} is never closed by {closing!r}.")


def _launcher(declaration: list[Token], path: str) -> Launcher | None:
    declaration = _without_attributes(declaration)
    texts = [token.text for token in declaration]
    if not texts or texts[-1] != "{" or "(" not in texts:
        return None  # a declaration, a variable or a block without function
    opening = texts.index("(")
    head = texts[:opening]
    if _NOT_EXPORTED & set(head) or "=" in head or len(head) < 2:
        return None
    where = f"{path}:{declaration[opening - 1].line}"
    name, returns = head[-1], [word for word in head[:-1] if word not in ("extern", "__host__")]
    closing = _closing(declaration, opening, path)
    text = _spell(head[:-1]) + f" {name}({_spell(texts[opening + 1 : closing])})"
    if keyword.iskeyword(name) or name.startswith("__"):
        raise CandidateError(f"{where}: the launcher {name} needs another name: Python cannot call it so.")
    if "*" in returns or _scalar(returns) not in ("void", "int32_t"):
        raise CandidateError(
            f"{where}: {name} returns {_spell(returns)}; a launcher returns void, or int (0 is success), and writes "
            "its results through pointers."
        )
    groups = _split(declaration[opening + 1 : closing])
    parameters = [_parameter(group, index, index == len(groups) - 1, name, path) for index, group in enumerate(groups)]
    names = [p.name for p in parameters]
    if len(set(names)) < len(names):
        raise CandidateError(f"{where}: {name} has two parameters of one name ({', '.join(names)}).")
    return Launcher(name, tuple(parameters), _scalar(returns) != "void", path, declaration[opening - 1].line, text)


def _without_attributes(tokens: list[Token]) -> list[Token]:
    """Drop `__attribute__((…))`, `__launch_bounds__(…)` and `[[…]]`, which say nothing about the ABI."""
    kept: list[Token] = []
    at = 0
    while at < len(tokens):
        text, following = tokens[at].text, tokens[at + 1].text if at + 1 < len(tokens) else ""
        if text in ("__attribute__", "__declspec", "__launch_bounds__") and following == "(":
            at = _closing(tokens, at + 1, "") + 1
        elif text == "[" and following == "[":
            while at + 1 < len(tokens) and not (tokens[at].text == "]" and tokens[at + 1].text == "]"):
                at += 1
            at += 2
        else:
            kept.append(tokens[at])
            at += 1
    return kept


def _split(tokens: list[Token]) -> list[list[Token]]:
    if not tokens or [t.text for t in tokens] == ["void"]:
        return []
    groups: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in "([{<") - (token.text in ")]}>")
        if token.text == "," and depth == 0:
            groups.append([])
        else:
            groups[-1].append(token)
    return groups


def _parameter(tokens: list[Token], index: int, last: bool, function: str, path: str) -> Parameter:
    line = tokens[0].line if tokens else 0
    shown = _spell([t.text for t in tokens])

    def unbindable(why: str) -> CandidateError:
        return CandidateError(f"{path}:{line}: {function} cannot be bound: parameter `{shown}` {why}.")

    words = [t.text for t in tokens if t.text not in _QUALIFIERS]
    default = None
    if "=" in words:
        at = words.index("=")
        words, default = words[:at], _default("".join(words[at + 1 :]))
        if default is None:
            raise unbindable("has a default that is not a number; leave the default out")
    words = words[1:] if words[:1] == ["::"] else words
    words = words[2:] if words[:2] == ["std", "::"] else words
    array = "[" in words
    if array:
        words = words[: words.index("[")]
    stars = words.count("*") + array
    if "&" in words:
        raise unbindable("is a reference; pass a pointer or a value")
    if "struct" in words or "class" in words or "enum" in words or "<" in words or "::" in words:
        raise unbindable("is no plain number or pointer to one; pass its fields one by one")
    if "..." in words:
        raise unbindable("is variadic; list every parameter")
    if "(" in words:
        raise unbindable("is a function pointer; call the function inside the launcher instead")
    if stars > 1:
        raise unbindable("is a pointer to pointers; pass each pointer as its own parameter")
    base = [w for w in words if w != "*"]
    name = f"arg{index}"
    if len(base) > 1 and base[-1] not in _INTEGER_WORDS | set(POINTEES):
        name = base.pop()
    name += "_" * (keyword.iskeyword(name) or name in _TAKEN)
    kind = _scalar(base)
    if kind in _STREAMS or (kind == "void" and stars and last and name == "stream"):
        if not last:
            raise unbindable("is a stream that is not the last parameter; put it last")
        return Parameter(name, "void", pointer=True, stream=True)
    if kind not in (POINTEES if stars else SCALARS):
        known = ", ".join(POINTEES) if stars else "int, int64_t, float, double, bool and the other fixed-width integers"
        hint = f"is of a type that has no torch dtype (known: {known}; `void*` takes any tensor)" if stars else (
            f"is of a type that cannot be passed by value (known: {known})"
        )  # fmt: skip
        raise unbindable(hint)
    return Parameter(name, kind, pointer=bool(stars), default=default)


def _scalar(words: list[str]) -> str:
    """Normalised name of a type given as its words; unknown types come back as they are."""
    words = [w for w in words if w not in _QUALIFIERS]
    if words and set(words) <= _INTEGER_WORDS:
        modifiers = sorted(w for w in words if w not in ("int", "signed") or (w == "signed" and "char" in words))
        return _ALIASES.get(" ".join(modifiers) or "int", " ".join(words))
    return _ALIASES.get(" ".join(words), " ".join(words))


def _default(text: str) -> str | None:
    if text in ("true", "false"):
        return text.capitalize()
    if text in ("nullptr", "NULL"):
        return "None"
    return text.rstrip("fFlLuU") if _LITERAL.fullmatch(text) else None


def _spell(texts: list[str]) -> str:
    joined = " ".join(texts)
    return re.sub(r"\s+([*,&;\]\)])", r"\1", re.sub(r"\s*(::|\[|\()\s*", r"\1", joined))
