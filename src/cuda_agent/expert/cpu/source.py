"""One kernel as C++ text; traits.py says what its loops allow."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cuda_agent.expert.cpu.expressions import C_TYPES, affine, position, value_of
from cuda_agent.expert.cpu.reductions import Accumulator, accumulators, adds_floats, clauses, combine, result, update
from cuda_agent.expert.cpu.text import Text
from cuda_agent.expert.cpu.traits import LANES, kept_lets, prefetched, shape_of, streamed
from cuda_agent.expert.ir import ITEMSIZE, Buffer, Const, Dtype, Kernel, Let, Op, Pass, Reduction, Store

THREADS = 64  # more than this many threads gain nothing in a memory-bound kernel; a row's split partials fit


class KernelSource(Text):
    """Text of a kernel's .cpp file."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Buffer], defaults: Mapping[str, int]) -> None:
        super().__init__()
        self.kernel, self.buffers, self.defaults = kernel, buffers, defaults
        self.shape = shape_of(kernel)
        self.dtypes: dict[str, Dtype] = {let.name: let.dtype for let in kernel.lets()}
        self.dtypes |= {r.name: r.dtype for r in kernel.reductions}
        self.constants = {let.name: let.value for let in kernel.lets() if isinstance(let.value, Const)}
        self.kept = {let.name: let for let in kept_lets(kernel)}
        self.stored_keeps: set[str] = set()
        self.declared: set[str] = set()
        self.lanes: set[str] = set()  # names that are arrays over columns
        self.streams = {id(s) for s in streamed(kernel)}
        self.ahead = prefetched(kernel, buffers)

    def text(self) -> str:
        kernel = self.kernel
        self._put(f"// {kernel.doc or kernel.name}" + (f" (model.py: {_lines(kernel.lines)})" if kernel.lines else ""))
        self._put("// cuda-agent: flags=-fno-math-errno,-fno-trapping-math")
        for header in ("<omp.h>", "<algorithm>", "<cmath>", "<cstdint>", "<memory>", '"simd_math.h"', '"stream.h"'):
            self._put(f"#include {header}")
        self._put("")
        for macro, value in self.defaults.items():
            for line in (f"#ifndef {macro}", f"#define {macro} {value}", "#endif"):
                self._put(line)
        self._put("")
        pointers = [f"const {self._type(b)}* __restrict {_pointer(b)}" for b in kernel.reads]
        pointers += [f"{self._type(b)}* __restrict {_pointer(b)}" for b in kernel.writes]
        with self._block(f'extern "C" void {kernel.name}({", ".join(pointers)})'):
            {"rows": self._rows, "shared": self._shared_rows, "columns": self._columns}[self.shape]()
        return "\n".join(self.lines) + "\n"

    # Shapes

    def _rows(self) -> None:
        kernel = self.kernel
        loops = (*kernel.outer, *kernel.inner)
        if not kernel.reductions:
            self._pointwise(loops)
            return
        with self._block("#pragma omp parallel\n"):
            self._scratch()
            self._put("#pragma omp for schedule(static)")
            with self._block(f"for (int64_t row = 0; row < {kernel.rows}; ++row)"):
                outer = self._decompose("row", kernel.outer, "i")
                if self.ahead:
                    self._put(f"const int64_t next = std::min<int64_t>(row + 1, {kernel.rows - 1});")
                    self.next = self._decompose("next", kernel.outer, "n")
                for sweep in kernel.passes:
                    self._sweep(sweep, outer)
                self._finish(outer)
            self._put("if (STREAM) stream::fence();" if self.streams else "")

    def _pointwise(self, loops: tuple[int, ...]) -> None:
        """Tiles of the innermost loop are the work items."""
        *outer_sizes, length = loops or (1,)
        rows = math.prod(outer_sizes)
        self._put(f"constexpr int64_t kTiles = ({length} + TILE - 1) / TILE;")
        with self._block("#pragma omp parallel\n"):
            self._scratch()
            self._put("#pragma omp for schedule(static)")
            with self._block(f"for (int64_t item = 0; item < {rows} * kTiles; ++item)"):
                self._put(f"const int64_t lo = item % kTiles * TILE, m = std::min<int64_t>(TILE, {length} - lo);")
                self._put("const int64_t row = item / kTiles;" if rows > 1 else "")
                outer = self._decompose("row", tuple(outer_sizes), "i")
                (sweep,) = self.kernel.passes
                body = [*sweep.row, *sweep.body]
                variables = [*outer, "j"] if loops else []
                self._segment(Pass((), tuple(body), (), sweep.stores), variables)
            self._put("if (STREAM) stream::fence();" if self.streams else "")

    def _shared_rows(self) -> None:
        kernel = self.kernel
        (sweep,) = kernel.passes
        self._put(f"const int threads = std::min(omp_get_max_threads(), {THREADS});")
        with self._block(f"for (int64_t row = 0; row < {kernel.rows}; ++row)"):
            outer = self._decompose("row", kernel.outer, "i")
            self._lets(sweep.row, outer)
            for r in sweep.reductions:
                for name, kind, start in self._accumulators(r):
                    self._put(f"{kind} part_{name}[{THREADS}];")
                    self._put(f"std::fill(part_{name}, part_{name} + {THREADS}, {start});")
            *segments, length = kernel.inner
            count = math.prod(segments)
            self._put(f"constexpr int64_t kTiles = ({length} + TILE - 1) / TILE;")
            with self._block("#pragma omp parallel num_threads(threads)\n"):
                self._start(sweep)
                self._put("#pragma omp for schedule(static) nowait")
                with self._block(f"for (int64_t item = 0; item < {count} * kTiles; ++item)"):
                    self._put(f"const int64_t lo = item % kTiles * TILE, m = std::min<int64_t>(TILE, {length} - lo);")
                    self._put("const int64_t segment = item / kTiles;" if count > 1 else "")
                    inner = self._decompose("segment", tuple(segments), "k")
                    self._segment(sweep, [*outer, *inner, "j"], self._linear(inner, "j"))
                for r in sweep.reductions:
                    for name, _, _ in self._accumulators(r):
                        self._put(f"part_{name}[omp_get_thread_num()] = {name};")
            self._start(sweep)
            with self._block("for (int t = 0; t < threads; ++t)"):
                for r in sweep.reductions:
                    self._combine(r, "part_", "t")
            self._conclude(sweep)
            self._finish(outer)

    def _columns(self) -> None:
        kernel = self.kernel
        *before, width = kernel.outer
        self._put(f"constexpr int64_t kBlocks = ({width} + COLUMNS - 1) / COLUMNS;")
        self._put("#pragma omp parallel for schedule(static)")
        with self._block(f"for (int64_t item = 0; item < {math.prod(before)} * kBlocks; ++item)"):
            self._put(f"const int64_t c0 = item % kBlocks * COLUMNS, m = std::min<int64_t>(COLUMNS, {width} - c0);")
            self._put("const int64_t row = item / kBlocks;" if before else "")
            outer = [*self._decompose("row", tuple(before), "i"), "(c0 + c)"]
            for sweep in kernel.passes:
                self._column_lets(sweep.row, outer)
                for r in sweep.reductions:
                    for name, kind, start in self._accumulators(r):
                        self._put(f"alignas(64) {kind} {name}[COLUMNS];")
                        self._put(f"std::fill({name}, {name} + COLUMNS, {start});")
                        self.lanes.add(name)
                inner = [f"k{d}" for d in range(len(kernel.inner))]
                with self._nest(kernel.inner, inner):
                    self._put("#pragma omp simd")
                    with self._block("for (int64_t c = 0; c < m; ++c)"):
                        self._lets(self._needed(sweep), [*outer, *inner])
                        for r in sweep.reductions:
                            self._update(r, affine(0, _row_major(kernel.inner), inner))
                        for store in sweep.stores:
                            self._store(store, [*outer, *inner])
                for r in sweep.reductions:
                    self._column_result(r)
            self._column_lets(kernel.tail, outer)
            if kernel.row_stores:
                self._put("#pragma omp simd")
                with self._block("for (int64_t c = 0; c < m; ++c)"):
                    for store in kernel.row_stores:
                        self._store(store, [*outer, *["0"] * len(kernel.inner)])

    # Parts of rows

    def _scratch(self) -> None:
        """Per-thread memory: tiles for streamed stores, values kept for later passes."""
        for number, store in enumerate(s for p in self.kernel.passes for s in p.stores if id(s) in self.streams):
            self._put(f"alignas(64) {self._type(store.buffer)} tile{number}[STREAM ? TILE : 1];")
        for name, let in self.kept.items():
            kind = C_TYPES[let.dtype]
            self._put(f"const std::unique_ptr<{kind}[]> memory_{name}(new {kind}[KEEP ? {self.kernel.row_size} : 1]);")
            self._put(f"{kind}* const kept_{name} = memory_{name}.get();")

    def _sweep(self, sweep: Pass, outer: list[str]) -> None:
        kernel = self.kernel
        self._lets(sweep.row, outer)
        self._start(sweep)
        *segments, length = kernel.inner or (1,)
        inner = [f"k{d}" for d in range(len(segments))]
        with self._nest(tuple(segments), inner), self._block(f"for (int64_t lo = 0; lo < {length}; lo += TILE)"):
            self._put(f"const int64_t m = std::min<int64_t>(TILE, {length} - lo);")
            last = ["j"] if kernel.inner else []
            self._segment(sweep, [*outer, *inner, *last], self._linear(inner, "j"))
        self._conclude(sweep)

    def _segment(self, sweep: Pass, variables: list[str], linear: str = "j") -> None:
        """`m` points of the innermost loop from `lo`."""
        loops = (*self.kernel.outer, *self.kernel.inner)
        blocks = bool(loops) and loops[-1] % LANES == 0
        blocks = blocks and not any(r.kind.startswith("arg") for r in sweep.reductions)
        number = self._number(sweep)
        partial = list(sweep.reductions) if blocks else [r for r in sweep.reductions if adds_floats(r)]
        self._start_tile(partial, blocks)
        if blocks:  # each is written before the next is read, so that the memory does both at the same time
            with self._block(f"for (int64_t b = 0; b < m; b += {LANES})"):
                if self.ahead and number:
                    self._prefetch(number, variables)
                targets = self._targets(sweep, variables, "lo + b")
                self._put("#pragma omp simd")
                with self._block(f"for (int64_t c = 0; c < {LANES}; ++c)"):
                    self._put("const int64_t k = b + c, j = lo + k;")
                    self._points(sweep, variables, linear, partial, targets, "c")
                self._stream(sweep, variables, targets, "lo + b", str(LANES))
        else:
            targets = self._targets(sweep, variables, "lo")
            if not any(r.kind.startswith("arg") for r in sweep.reductions):
                parts = [part for r in sweep.reductions for part in clauses(r)]
                self._put("#pragma omp simd" + "".join(f" {part}" for part in parts))
            with self._block("for (int64_t k = 0; k < m; ++k)"):
                self._put("const int64_t j = lo + k;")
                self._points(sweep, variables, linear, partial, targets, "k")
            self._stream(sweep, variables, targets, "lo", "m")
        self._end_tile(partial, blocks)

    def _points(
        self, sweep: Pass, variables: list[str], linear: str, partial: list[Reduction], targets: dict[int, str], at: str
    ) -> None:
        self._lets(self._needed(sweep), variables, linear)
        for r in sweep.reductions:
            self._update(r, linear, "tile_" if r in partial else "")
        for store in sweep.stores:
            if id(store) in targets:
                self._put(f"{targets[id(store)]}[{at}] = {self._name(store.value)};")
            else:
                self._store(store, variables)

    def _start_tile(self, partial: list[Reduction], blocks: bool) -> None:
        for r in partial:
            for name, kind, start in self._accumulators(r, "tile_"):
                if blocks:
                    self._put(f"alignas(64) {kind} {name}[{LANES}];")
                    self._put(f"std::fill({name}, {name} + {LANES}, {start});")
                    self.lanes.add(name)
                else:
                    self._put(f"{kind} {name} = {start};")

    def _end_tile(self, partial: list[Reduction], blocks: bool) -> None:
        if not blocks:
            for r in partial:
                self._put(f"{r.name}_acc += tile_{r.name}_acc;")
        elif partial:
            with self._block(f"for (int c = 0; c < {LANES}; ++c)"):
                for r in partial:
                    self._combine(r, "tile_", "c")
            self.lanes -= {name for r in partial for name, _, _ in self._accumulators(r, "tile_")}

    def _targets(self, sweep: Pass, variables: list[str], start: str) -> dict[int, str]:
        """Where streamed stores go first, by their id. start: of the tile or block, in place of `j`."""
        targets: dict[int, str] = {}
        for store in sweep.stores:
            if id(store) in self.streams:
                number = self._tile_number(store)
                at = position(store.index, [start if v == "j" else v for v in variables], str)
                self._put(
                    f"{self._type(store.buffer)}* const to{number} = "
                    f"STREAM ? tile{number} : {_pointer(store.buffer)} + {at};"
                )
                targets[id(store)] = f"to{number}"
        return targets

    def _stream(self, sweep: Pass, variables: list[str], targets: dict[int, str], start: str, count: str) -> None:
        for store in sweep.stores:
            if id(store) in targets:
                at = position(store.index, [start if v == "j" else v for v in variables], str)
                tile = f"tile{self._tile_number(store)}"
                self._put(f"if (STREAM) stream::copy({_pointer(store.buffer)} + {at}, {tile}, {count});")

    def _number(self, sweep: Pass) -> int:
        """Of a pass; a pointwise kernel has a single one."""
        return next((n for n, own in enumerate(self.kernel.passes) if own is sweep), 0)

    def _tile_number(self, store: Store) -> int:
        stores = [s for p in self.kernel.passes for s in p.stores if id(s) in self.streams]
        return next(number for number, s in enumerate(stores) if s is store)

    def _prefetch(self, number: int, variables: list[str]) -> None:
        """One block of the next row's inputs into the L2 cache."""
        ahead = [*self.next, *variables[len(self.next) : -1], "lo + b"]
        for read in self.ahead:
            at = position(read.index, ahead, str)
            line = 64 // ITEMSIZE[self.buffers[read.buffer].dtype]
            for offset in range(0, LANES, line):
                self._put(
                    f"if (PREFETCH == {number}) __builtin_prefetch({_pointer(read.buffer)} + {at} + {offset}, 0, 2);"
                )

    def _needed(self, sweep: Pass) -> list[Let]:
        """The body lets that this pass's reductions and stores lead back to, a kept one standing for its own past."""
        wanted = {r.value for r in sweep.reductions} | {s.value for s in sweep.stores}
        for store in sweep.stores:
            wanted |= {name for name, _ in store.index.indirect}
        return [let for let in sweep.body if let.name in _reachable(sweep.body, wanted)]

    def _finish(self, outer: list[str]) -> None:
        self._lets(self.kernel.tail, outer)
        for store in self.kernel.row_stores:
            self._store(store, [*outer, *["0"] * len(self.kernel.inner)])
        self.declared.clear()

    # Reductions

    def _accumulators(self, r: Reduction, prefix: str = "") -> list[Accumulator]:
        return accumulators(r, self.dtypes[r.value], prefix)

    def _start(self, sweep: Pass) -> None:
        for r in sweep.reductions:
            for name, kind, start in self._accumulators(r):
                self._put(f"{kind} {name} = {start};")

    def _update(self, r: Reduction, linear: str, prefix: str = "") -> None:
        of = self.dtypes[r.value]
        self._put(*update(r, of, self._name(r.value), linear, self._name, prefix))

    def _combine(self, r: Reduction, prefix: str, at: str) -> None:
        self._put(*combine(r, self.dtypes[r.value], self._name, prefix, at))

    def _conclude(self, sweep: Pass) -> None:
        for r in sweep.reductions:
            self._put(f"const {C_TYPES[r.dtype]} {r.name} = {result(r, self._name)};")

    # Parts of columns

    def _column_lets(self, lets: tuple[Let, ...], outer: list[str]) -> None:
        fresh = [let for let in lets if let.name not in self.lanes]
        if not fresh:
            return
        variables = [*outer, *["0"] * len(self.kernel.inner)]
        for let in fresh:
            self._put(f"alignas(64) {C_TYPES[let.dtype]} {let.name}[COLUMNS];")
            self.lanes.add(let.name)
        self._put("#pragma omp simd")
        with self._block("for (int64_t c = 0; c < m; ++c)"):
            for let in fresh:
                self._put(f"{let.name}[c] = {self._value(let, variables)};")

    def _column_result(self, r: Reduction) -> None:
        self._put(f"alignas(64) {C_TYPES[r.dtype]} {r.name}[COLUMNS];")
        self._put("#pragma omp simd")
        self._put(f"for (int64_t c = 0; c < m; ++c) {r.name}[c] = {result(r, self._name)};")
        self.lanes.add(r.name)

    # Text

    def _lets(self, lets: tuple[Let, ...] | list[Let], variables: list[str], linear: str | None = None) -> None:
        """linear: given in the innermost loop, the position in a row's kept values."""
        variables = [*variables, *["0"] * (len(self.kernel.outer) + len(self.kernel.inner) - len(variables))]
        in_loop = linear is not None or self.shape == "columns"
        for let in lets:
            if not in_loop and let.name in self.declared:
                continue  # the same value, computed for an earlier pass
            if not in_loop:
                self.declared.add(let.name)
            text = self._value(let, variables)
            kept = linear is not None and let.name in self.kept
            if kept and let.name in self.stored_keeps:
                text = f"KEEP ? kept_{let.name}[{linear}] : {text}"
            self._put(f"const {C_TYPES[let.dtype]} {let.name} = {text};")
            if kept and let.name not in self.stored_keeps:
                self._put(f"if (KEEP) kept_{let.name}[{linear}] = {let.name};")
                self.stored_keeps.add(let.name)

    def _value(self, let: Let, variables: list[str]) -> str:
        return value_of(let, variables, self._name, self.dtypes, self.constants, _pointer)

    def _store(self, store: Store, variables: list[str]) -> None:
        at = position(store.index, variables, self._name)
        self._put(f"{_pointer(store.buffer)}[{at}] = {self._name(store.value)};")

    def _name(self, name: str) -> str:
        return f"{name}[c]" if name in self.lanes else name

    def _type(self, buffer: str) -> str:
        return C_TYPES[self.buffers[buffer].dtype]

    def _decompose(self, index: str, sizes: tuple[int, ...], stem: str) -> list[str]:
        """Variables of the dims that `index` counts row-major."""
        names = [f"{stem}{d}" for d in range(len(sizes))]
        strides = _row_major(sizes)
        for d, (name, stride) in enumerate(zip(names, strides, strict=True)):
            quotient = index if stride == 1 else f"{index} / {stride}"
            self._put(f"const int64_t {name} = {quotient if d == 0 else f'{quotient} % {sizes[d]}'};")
        return names

    def _linear(self, inner: list[str], last: str) -> str:
        return affine(0, _row_major(self.kernel.inner), [*inner, last]) if self.kernel.inner else "0"


def _pointer(buffer: str) -> str:
    """A buffer's parameter: never one of the names that the loops use."""
    return f"p_{buffer}"


def _row_major(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def _reachable(lets: tuple[Let, ...], wanted: set[str]) -> set[str]:
    found = set(wanted)
    for let in reversed(lets):
        if let.name in found:
            value = let.value
            if isinstance(value, Op):
                found |= set(value.args)
            else:
                index = getattr(value, "index", None)
                found |= {name for name, _ in index.indirect} if index is not None else set()
                mask = getattr(value, "mask", None)
                found |= {mask} if mask else set()
    return found


def _lines(lines: tuple[int, ...]) -> str:
    return ("line " if len(lines) == 1 else "lines ") + ", ".join(map(str, lines))
