"""The generated `Op`: what one kernel computes, for the drivers in include/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cuda_agent.expert.cuda.expressions import C_TYPES, c_name, literal, operation
from cuda_agent.expert.cuda.layout import Layout
from cuda_agent.expert.cuda.states import position_type
from cuda_agent.expert.ir import ITEMSIZE, Const, Coordinate, Dtype, Index, Kernel, Let, Load, Op, Pass, Plan, Store


def references(let: Let) -> tuple[str, ...]:
    """Names that a let reads."""
    value = let.value
    if isinstance(value, Op):
        return value.args
    if isinstance(value, Load):
        return tuple(n for n, _ in value.index.indirect) + ((value.mask,) if value.mask else ())
    return ()


@dataclass(frozen=True)
class Names:
    """What is known of a kernel's names. held: lets of the first pass that stay on the chip for later passes."""

    plan: Plan
    kernel: Kernel

    @cached_property
    def dtypes(self) -> dict[str, Dtype]:
        found: dict[str, Dtype] = {let.name: let.dtype for let in self.kernel.lets()}
        return found | {r.name: r.dtype for r in self.kernel.reductions}

    @cached_property
    def constants(self) -> dict[str, Const]:
        return {let.name: let.value for let in self.kernel.lets() if isinstance(let.value, Const)}

    @cached_property
    def row_lets(self) -> dict[str, Let]:
        return {let.name: let for p in self.kernel.passes for let in p.row}

    @cached_property
    def held(self) -> tuple[Let, ...]:
        """The cheapest cut between what passes have in common and what they do with it: values, or what is loaded."""
        first, *later = self.kernel.passes
        own = {let.name: let for let in first.body}
        common = {let.name for p in later for let in p.body if let.name in own}
        cut = shared_cut(own, later)
        needed = closure([let.name for let in cut], first.body)
        loads = [let for n, let in own.items() if n in needed & common and isinstance(let.value, Load)]
        if sum(ITEMSIZE[x.dtype] for x in loads) < sum(ITEMSIZE[x.dtype] for x in cut):
            return tuple(loads)
        return tuple(cut)

    @cached_property
    def replaced(self) -> Let | None:
        """A dear let of the second pass, such as an exponential, that takes the place of what is held."""
        passes = self.kernel.passes
        if len(passes) < 3 or len(self.held) != 1:
            return None
        own = {let.name: let for let in passes[1].body}
        cut = shared_cut(own, passes[2:])
        if len(cut) != 1 or cut[0].dtype != self.held[0].dtype or cut[0].name == self.held[0].name:
            return None
        steps = closure([cut[0].name], passes[1].body, [self.held[0].name])
        dear = any(isinstance(v := own[n].value, Op) and v.fn not in CHEAP for n in steps)
        return cut[0] if dear else None


CHEAP = frozenset({"add", "sub", "mul", "neg", "abs", "square", "min", "max", "cast", "where", "lt", "le", "gt", "ge",
                   "eq", "ne", "and", "or", "not"})  # fmt: skip


def shared_cut(own: Mapping[str, Let], later: Sequence[Pass]) -> list[Let]:
    """Lets of one pass that later passes have too and build upon."""
    common = {let.name for p in later for let in p.body if let.name in own}
    used: set[str] = set()
    for p in later:
        used |= {n for let in p.body if let.name not in common for n in references(let)}
        used |= {r.value for r in p.reductions} | {s.value for s in p.stores}
    return [let for n, let in own.items() if n in common & used and not isinstance(let.value, Const | Coordinate)]


def closure(names: Iterable[str], lets: Iterable[Let], stop: Iterable[str] = ()) -> set[str]:
    """The names and all lets that they depend on, not looking behind `stop`."""
    by_name, found, stopped = {let.name: let for let in lets}, set(), set(stop)
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found or name not in by_name:
            continue
        found.add(name)
        if name not in stopped:
            todo += references(by_name[name])
    return found


class OpPrinter:
    """Prints the members of `Op` that depend on the kernel's code."""

    def __init__(self, names: Names, layout: Layout) -> None:
        self.names, self.layout, self.kernel = names, layout, names.kernel
        self.lane_result = "j" if layout.kind == "columns" else "0"

    # --- coordinates and addresses

    def offset(self, index: Index | Coordinate, lane: bool) -> str:
        """Element offset of the item's first lane, or of lane `j`."""
        terms = []
        for d, stride in enumerate(index.strides):
            if stride:
                coordinate = self.coordinate(d, lane)
                wide = f"Index({coordinate})" if self.layout.reduces else coordinate
                terms.append(coordinate if stride == 1 else f"{wide} * {stride}")
        if index.offset or not terms:
            terms.append(str(index.offset))
        return " + ".join(terms)

    def coordinate(self, d: int, lane: bool) -> str:
        name = self.layout.names[d]
        if self.layout.kind == "flat" and lane:
            return name  # decoded in the lane loop
        if lane and d == self.layout.axis:
            return f"(at.{name} + j)"
        return f"at.{name}"

    def lane_address(self, load: Load | Store) -> str:
        text = self.offset(load.index, lane=True)
        extra = "".join(f" + {c_name(n)} * int64_t({s})" for n, s in load.index.indirect)
        return f"this->{load.buffer} + {'int64_t(' + text + ')' + extra if extra else text}"

    def is_fetched(self, let: Let) -> bool:
        """Whether a load happens before the lane loop, for all lanes at once."""
        value = let.value
        if not isinstance(value, Load) or value.index.indirect or value.mask is not None:
            return False
        return self.layout.kind != "flat" or self.layout.is_flat(value.index) or not any(value.index.strides)

    def fetch_text(self, load: Load) -> tuple[str, str]:
        """(number of lanes, expression)."""
        index, layout = load.index, self.layout
        pointer = f"this->{load.buffer} + {self.offset(index, lane=False)}"
        if layout.kind == "flat":
            if not any(index.strides):
                return "1", f"load_lanes<1, 1, KEEP>(this->{load.buffer} + {index.offset})"
            start = f"this->{load.buffer} + at.e" + (f" + {index.offset}" if index.offset else "")
            return "VEC", self.guarded(start, layout.unit(index), 1)
        stride = layout.lane_stride(index)
        if stride == 0:
            return "1", f"load_lanes<1, 1, KEEP>({pointer})"
        if layout.kind == "shifted":
            return "VEC", self.guarded(pointer, layout.unit(index), stride)
        if stride == 1:
            return "VEC", f"load_lanes<VEC, {layout.unit(index)}, {self.cache(index)}>({pointer})"
        return "VEC", f"load_strided<VEC>({pointer}, {stride})"

    def guarded(self, pointer: str, unit: int, stride: int) -> str:
        some = f"load_some<VEC, LOAD_CACHE>({pointer}, {stride}, at.low, at.high)"
        if stride != 1:
            return some
        return f"at.full() ? load_lanes<VEC, {unit}, LOAD_CACHE>({pointer}) : {some}"

    def cache(self, index: Index) -> str:
        """Streaming hints are for what is read once in a sweep."""
        broadcast = any(t == 0 and s > 1 for s, t in zip(self.layout.sizes, index.strides, strict=False))
        return "KEEP" if broadcast else "LOAD_CACHE"

    # --- scalar code

    def value(self, let: Let, lane: bool = True) -> str:
        """C++ expression of a let inside a lane loop (loads are made there)."""
        value = let.value
        if isinstance(value, Const):
            return literal(value.value, let.dtype)
        if isinstance(value, Coordinate):
            return self.integer_coordinate(value, lane)
        if isinstance(value, Load):
            read = f"load_lanes<1, 1, KEEP>({self.lane_address(value)})[0]"
            zero = f"cast<{C_TYPES[let.dtype]}>(0.0f)" if "16" in let.dtype else f"{C_TYPES[let.dtype]}(0)"
            guards = ([c_name(value.mask)] if value.mask else []) + (
                ["at.has(j)"] if lane and self.layout.masked else []
            )
            return f"{' && '.join(guards)} ? {read} : {zero}" if guards else read
        return operation(let, self.names.dtypes, self.names.constants)

    def integer_coordinate(self, value: Coordinate, lane: bool) -> str:
        terms = [f"int64_t({self.coordinate(d, lane)}) * {s}" for d, s in enumerate(value.strides) if s]
        return " + ".join([*terms, f"int64_t({value.offset})"])

    def uses_values(self, lets: Iterable[Let], extra: Iterable[str], available: Iterable[str]) -> list[str]:
        """Row lets and reductions used, as local names."""
        local = {let.name for let in lets}
        wanted = dict.fromkeys([n for let in lets for n in references(let)] + list(extra))
        return [
            f"const {C_TYPES[self.names.dtypes[n]]} {c_name(n)} = val.{c_name(n)}[{self.lane_result}];"
            for n in wanted if n not in local and n in set(available)
        ]  # fmt: skip

    def position(self) -> str:
        """Row-major position within `inner` of lane j."""
        inner, outer, step, terms = self.kernel.inner, len(self.kernel.outer), 1, []
        for d in reversed(range(len(inner))):
            coordinate = self.coordinate(outer + d, lane=True)
            terms.append(coordinate if step == 1 else f"{coordinate} * {step}")
            step *= inner[d]
        return f"{position_type(self.kernel)}({' + '.join(reversed(terms)) or '0'})"

    def lane_loop(self, p: Pass, number: int, lets: list[Let], held: set[str], available: list[str]) -> list[str]:
        """The statements of one lane: lets, reductions, results to store."""
        lines = self.flat_coordinates(lets)
        ends = [r.value for r in p.reductions] + [s.value for s in p.stores]
        lines += self.uses_values(lets, ends, available)
        replaced = self.names.replaced if held else None
        for let in lets:
            if self.is_fetched(let):
                lanes, _ = self.fetch_text(let.value)  # type: ignore[arg-type]
                text = f"in.{c_name(let.name)}[{'0' if lanes == '1' else 'j'}]"
            else:
                text = self.value(let)
            name = c_name(let.name)
            if let.name in held:
                if number == 0:
                    lines.append(f"const {C_TYPES[let.dtype]} {name} = {text};")
                    lines.append(f"held.{name}[j] = {name};")
                else:
                    lines.append(f"const {C_TYPES[let.dtype]} {name} = REUSE ? held.{name}[j] : {_paren(text)};")
            elif replaced is not None and let.name == replaced.name and number:
                slot = f"held.{c_name(self.names.held[0].name)}[j]"
                text = f"REUSE ? {slot} : {_paren(text)}" if number > 1 else text
                lines.append(f"const {C_TYPES[let.dtype]} {name} = {text};")
                if number == 1:
                    lines.append(f"{slot} = {name};")
            else:
                lines.append(f"const {C_TYPES[let.dtype]} {name} = {text};")
        for r in p.reductions:
            extra = f", {self.position()}" if r.kind.startswith("arg") else ""
            guard = "if (at.has(j)) " if self.layout.masked else ""
            lines.append(f"{guard}acc[j].add_{c_name(r.name)}({c_name(r.value)}{extra});")
        for n, s in enumerate(p.stores):
            if self.layout.kind == "flat" and not self.layout.is_flat(s.index):
                lines.append(f"if (at.has(j)) *({self.lane_address(s)}) = {c_name(s.value)};")
            else:
                lines.append(f"out{n}[j] = {c_name(s.value)};")
        return lines

    def flat_coordinates(self, lets: Iterable[Let]) -> list[str]:
        if self.layout.kind != "flat":
            return []
        wanted: set[int] = set()
        for let in lets:
            value = let.value
            if isinstance(value, Coordinate) or (isinstance(value, Load) and not self.is_fetched(let)):
                index = value if isinstance(value, Coordinate) else value.index
                wanted |= {d for d, s in enumerate(index.strides) if s}
        for s in self.kernel.all_stores():
            if not self.layout.is_flat(s.index):
                wanted |= {d for d, stride in enumerate(s.index.strides) if stride}
        if not wanted:
            return []
        lines = ["const Index e = at.has(j) ? at.e + j : 0;"]
        return lines + [f"const Index {self.layout.names[d]} = {self.flat_decode(d, 'e')};" for d in sorted(wanted)]

    def flat_decode(self, d: int, flat: str) -> str:
        sizes, step = self.layout.sizes, 1
        for size in sizes[d + 1 :]:
            step *= size
        text = flat if step == 1 else f"{flat} / {step}"
        return text if d == 0 else f"{text} % {sizes[d]}"

    def store_text(self, n: int, s: Store) -> str:
        layout, index = self.layout, s.index
        if layout.kind == "flat":
            if layout.is_flat(index):
                pointer = f"this->{s.buffer} + at.e" + (f" + {index.offset}" if index.offset else "")
                vector = f"store_lanes<VEC, {layout.unit(index)}, STORE_CACHE>({pointer}, out{n})"
                return f"if (at.full()) {vector}; else store_some<VEC>({pointer}, 1, out{n}, at.low, at.high);"
            return ""  # done in the lane loop
        pointer, stride = f"this->{s.buffer} + {self.offset(index, lane=False)}", layout.lane_stride(index)
        if index.indirect:
            raise AssertionError("stores are never indirect")
        if layout.kind == "shifted":
            some = f"store_some<VEC>({pointer}, {stride}, out{n}, at.low, at.high);"
            if stride != 1:
                return some
            return f"if (at.full()) store_lanes<VEC, {layout.unit(index)}, STORE_CACHE>({pointer}, out{n}); else {some}"
        if stride == 1:
            return f"store_lanes<VEC, {layout.unit(index)}, STORE_CACHE>({pointer}, out{n});"
        return f"store_some<VEC>({pointer}, {stride}, out{n}, 0, VEC);"


def _paren(text: str) -> str:
    return f"({text})" if "?" in text else text
