"""Lines of C++ under way, with their indentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Text:
    """Base of what writes a source file."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def _put(self, *lines: str) -> None:
        """An empty line stands only outside of blocks; a preprocessor's is not indented."""
        for line in lines:
            if line or not self.depth:
                self.lines.append("    " * self.depth + line if line and not line.startswith("#") else line)

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        """`head {` … `}`; a pragma, which ends with a newline, stands on a line of its own."""
        if head.endswith("\n"):
            self._put(head.strip())
            head = ""
        self._put(f"{head} {{".strip())
        self.depth += 1
        yield
        self.depth -= 1
        self._put("}")

    @contextmanager
    def _nest(self, sizes: tuple[int, ...], names: list[str]) -> Iterator[None]:
        """Loops over all of `sizes`, outermost first."""
        for name, size in zip(names, sizes, strict=True):
            self._put(f"for (int64_t {name} = 0; {name} < {size}; ++{name}) {{")
            self.depth += 1
        yield
        for _ in names:
            self.depth -= 1
            self._put("}")
