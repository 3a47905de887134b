"""One CUDA source per kernel: schedule macros, reduction states, the `Op`, and the launcher."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from cuda_agent.expert.cuda.expressions import C_TYPES, c_name
from cuda_agent.expert.cuda.layout import Layout
from cuda_agent.expert.cuda.op_struct import Names, OpPrinter, closure
from cuda_agent.expert.cuda.states import state_bytes, state_struct
from cuda_agent.expert.ir import ITEMSIZE, Buffer, Kernel, Let, Load, Pass, Plan

COUNTER_BYTES = 16384  # room for the barriers of 4096 teams


def kernel_source(plan: Plan, kernel: Kernel, layout: Layout, defaults: Mapping[str, int],
                  workspaces: tuple[Buffer, ...]) -> str:  # fmt: skip
    names = Names(plan, kernel)
    printer = OpPrinter(names, layout)
    lines = [f"// {kernel.doc or kernel.name}"]
    lines += [f"// outer {_sizes(kernel.outer)}, inner {_sizes(kernel.inner)}; lanes along {_axis(layout)}.", ""]
    for macro, value in defaults.items():
        lines += [f"#ifndef {macro}", f"#define {macro} {value}", "#endif"]
    lines += ["", '#include "launch.cuh"', "", "namespace {", ""]
    if layout.reduces:
        for number, p in enumerate(kernel.passes):
            if p.reductions:
                lines += [*state_struct(number, p, kernel, names.dtypes), ""]
    lines += _op(names, printer, layout)
    lines += ["", "}  // namespace", ""]
    return "\n".join(lines + _launcher(plan, kernel, layout, workspaces)) + "\n"


def _sizes(sizes: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]"


def _axis(layout: Layout) -> str:
    return "the flattened nest" if layout.kind == "flat" else f"{layout.names[layout.axis]} ({layout.kind})"


def _launcher(plan: Plan, kernel: Kernel, layout: Layout, workspaces: tuple[Buffer, ...]) -> list[str]:
    parameters = [f"const {C_TYPES[plan.buffer(n).dtype]}* {n}" for n in kernel.reads]
    parameters += [f"{C_TYPES[plan.buffer(n).dtype]}* {n}" for n in kernel.writes]
    parameters += [f"{C_TYPES[w.dtype]}* {w.name}" for w in workspaces]
    made = f"Op{{{', '.join((*kernel.reads, *kernel.writes))}}}"
    space = f"reinterpret_cast<char*>({workspaces[0].name})" if workspaces else "nullptr"
    call = f"launch_rows({made}, {space}, stream)" if layout.reduces else f"launch_pointwise({made}, stream)"
    return [
        f'extern "C" int {kernel.name}({", ".join([*parameters, "cudaStream_t stream"])}) {{',
        f"  return {call};",
        "}",
    ]


def _indent(lines: Iterable[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


def _op(names: Names, printer: OpPrinter, layout: Layout) -> list[str]:
    kernel = names.kernel
    lines = ["struct Op {", f"  using Index = {layout.index_type};"]
    if layout.reduces:
        lines.append(f"  using Inner = {layout.inner_type};  // of what lies within a row")
    lines += [f"  const {C_TYPES[names.plan.buffer(n).dtype]}* {n};" for n in kernel.reads]
    lines += [f"  {C_TYPES[names.plan.buffer(n).dtype]}* {n};" for n in kernel.writes]
    lines += ["", *_indent(_at(kernel, layout), 2), ""]
    held = {let.name for let in names.held} if layout.reduces else set()
    if layout.reduces:
        fields = " ".join(f"Lanes<{C_TYPES[x.dtype]}, VEC> {c_name(x.name)};" for x in names.held)
        unit = min((ITEMSIZE[x.dtype] for x in names.held), default=1)
        lines += ["  // Kept on the chip from the first pass on, for whole-vector accesses to shared memory.",
                  f"  struct alignas(smaller(16, VEC * {unit})) Held {{ {fields} }};", ""]  # fmt: skip
    lines += _indent(_constants(names, layout), 2)
    if layout.reduces:
        lines += ["", *_indent(_values(names), 2)]
        for number in range(len(kernel.passes) + 1):
            lines += ["", *_indent(_row(names, printer, layout, number), 2)]
    for number, p in enumerate(kernel.passes):
        lines += ["", *_indent(_pass(names, printer, layout, number, p, held), 2)]
    if layout.reduces:
        lines += ["", *_indent(_finish(names, printer, layout), 2), "", *_indent(_prefetch(printer, layout, kernel), 2)]
    return [*lines, "};"]


def _at(kernel: Kernel, layout: Layout) -> list[str]:
    """Coordinates of an item's first lane, and which lanes exist."""
    if layout.kind == "flat":
        total = math.prod(layout.sizes)
        return [
            "struct At {  // one item: VEC neighbouring points of the flattened nest",
            "  Index e;",
            "  int low, high;  // lanes that exist",
            "  DEVICE bool has(int j) const { return j < high; }",
            "  DEVICE bool full() const { return high == VEC; }",
            "};",
            "DEVICE static At at(Index, Index item) {",
            f"  const int64_t left = {total}LL - int64_t(item) * VEC;",
            "  return At{item * VEC, 0, left < VEC ? int(left) : VEC};",
            "}",
        ]
    lines = ["struct At {  // one item: coordinates of its first lane"]
    kinds = ("Index", layout.names[: len(kernel.outer)]), ("Inner", layout.names[len(kernel.outer) :])
    if not layout.reduces:
        kinds = ("Index", layout.names), ("Inner", ())
    lines += [f"  {kind} {', '.join(names)};" for kind, names in kinds if names]
    if layout.kind == "shifted":
        lines += [
            "  int low, high;  // lanes that exist",
            "  DEVICE bool has(int j) const { return j >= low && j < high; }",
            "  DEVICE bool full() const { return low <= 0 && high >= VEC; }",
        ]
    item = "Inner" if layout.reduces else "Index"
    lines += ["};", f"DEVICE static At at(Index group, {item} item) {{", "  At at{};"]
    outer = len(kernel.outer)
    rows, inner = list(range(outer)), list(range(outer, len(layout.names)))
    if layout.kind == "pointwise":
        lines += _decode("item", list(range(len(layout.names))), layout)
    elif layout.kind == "columns":
        lines += _decode("group", rows, layout) + _decode("item", inner, layout)
    elif layout.kind == "shifted":
        lines += _decode("group", rows, layout)
        assert layout.reference is not None
        base = " + ".join([f"at.o{d} * {s % 16}" for d, s in enumerate(layout.reference.strides[:outer]) if s % 16]
                          + [str(layout.reference.offset % 16)])  # fmt: skip
        size = layout.sizes[-1]
        lines += [
            f"  const Inner shift = Inner(({base}) % VEC);  // of the row's start, so that vectors are aligned",
            "  at.i0 = item * VEC - shift;",
            "  at.low = -int(at.i0);",
            f"  at.high = {size} - at.i0 < VEC ? int({size} - at.i0) : VEC;",
        ]
    else:
        lines += _decode("group", rows, layout) + _decode("item", inner, layout)
    return [*lines, "  return at;", "}"]


def _decode(source: str, dims: list[int], layout: Layout) -> list[str]:
    """Split a linear index into coordinates; the lane dim runs fastest, in steps of VEC."""
    order = [d for d in dims if d != layout.axis] + [d for d in dims if d == layout.axis]
    lines, rest = [], source
    for position, d in enumerate(reversed(order)):
        last = position == len(order) - 1
        size = f"({layout.sizes[d]} / VEC)" if d == layout.axis else str(layout.sizes[d])
        part = rest if last else f"{rest} % {size}"
        if d == layout.axis:
            part = f"({part}) * VEC"
        lines.append(f"  at.{layout.names[d]} = {part};")
        if not last:
            lines.append(f"  {source} /= {size};")
    return lines


def _constants(names: Names, layout: Layout) -> list[str]:
    kernel = names.kernel
    total = math.prod(layout.sizes)
    lines = [
        "static constexpr int kVec = VEC, kThreads = THREADS, kUnroll = UNROLL, kPersistent = PERSISTENT;",
        "static constexpr int kBlocksPerSm = BLOCKS_PER_SM * THREADS <= 2048 ? BLOCKS_PER_SM : 2048 / THREADS;",
    ]
    if not layout.reduces:
        items = f"ceil_div({total}LL, VEC)" if layout.kind == "flat" else f"{total}LL / VEC"
        return [*lines, f"static constexpr int64_t kItems = {items};"]
    rows, size = kernel.rows, kernel.row_size
    columns = layout.kind == "columns"
    if layout.kind == "shifted":
        assert layout.reference is not None
        moves = any(s % 16 for s in (layout.reference.offset, *layout.reference.strides[: len(kernel.outer)]))
        items = f"ceil_div({size}LL + {'VEC - 1' if moves else '0'}, VEC)"
    else:
        items = f"{size}LL" if columns else f"{size}LL / VEC"
    groups = ("COLUMNS < THREADS ? COLUMNS : THREADS" if columns
              else "kTeam == 1 && THREADS / ROWS_PER_BLOCK <= 32 ? ROWS_PER_BLOCK : 1")  # fmt: skip
    states = [f"int(sizeof(State{n}))" for n, p in enumerate(kernel.passes) if p.reductions] or ["0"]
    widest = states[0]
    for other in states[1:]:
        widest = f"larger({widest}, {other})"
    combine = "kGroups == THREADS ? 0 : THREADS * VEC * kStateBytes" if columns else "32 * kStateBytes"
    finish = "true" if kernel.tail or kernel.row_stores else "false"
    return [
        *lines,
        f"static constexpr int kReplace = {1 if names.replaced else -1};  // the pass that changes what is held",
        f"static constexpr bool kAlongRow = {'false' if columns else 'true'}, kHasFinish = {finish};",
        f"static constexpr int kPasses = {len(kernel.passes)}, kLanes = {'VEC' if columns else '1'};",
        f"static constexpr int kStateBytes = ({widest} + 7) / 8 * 8;",
        f'static_assert(kStateBytes <= {state_bytes(kernel, names.dtypes)}, "the workspace is too small");',
        "static constexpr bool kPrefetch = PREFETCH != 0 && PERSISTENT != 0;",
        "static constexpr int kTeam = MODE == BLOCK ? 1 : MODE == CLUSTER && TEAM > 16 ? 16 : TEAM;",
        "static constexpr int kMode = kTeam == 1 ? int(BLOCK) : MODE;",
        f"static constexpr int kGroups = {groups};",
        f"static constexpr int64_t kAllGroups = {f'{rows}LL / VEC' if columns else f'{rows}LL'}, kItems = {items};",
        f"static constexpr int kCombineBytes = {combine}, kPartialBytes = kGroups * kLanes * kStateBytes;",
        "static constexpr int kWindowBytes = kMode == CLUSTER ? (2 * kPartialBytes + 15) / 16 * 16 : 0;",
        f"static constexpr int kCounterBytes = {COUNTER_BYTES};",
        "static constexpr int kHeldBytes = THREADS * int(sizeof(Held));",
        "static constexpr int kShare = SHARED_LIMIT / kBlocksPerSm - 1024;  // the driver takes 1 KiB of each block",
        "static constexpr int kSharedRoom = larger(0, (kShare - kCombineBytes - kWindowBytes) / kHeldBytes);",
        f"static constexpr int kRegItems = {'REG_ITEMS' if names.held else '0'};",
        f"static constexpr int kSharedItems = {'smaller(SHARED_ITEMS, kSharedRoom)' if names.held else '0'};",
    ]


def _values(names: Names) -> list[str]:
    kernel = names.kernel
    lines = ["struct Values {  // of a row: results of reductions and what follows from them"]
    for r in kernel.reductions:
        lines.append(f"  {C_TYPES[r.dtype]} {c_name(r.name)}[kLanes];")
    for let in names.row_lets.values():
        lines.append(f"  {C_TYPES[let.dtype]} {c_name(let.name)}[kLanes];")
    return [*lines, "};"]


def _lane_loop(count: str, body: list[str]) -> list[str]:
    return ["#pragma unroll", f"  for (int j = 0; j < {count}; ++j) {{", *_indent(body, 4), "  }"] if body else []


def _row(names: Names, printer: OpPrinter, layout: Layout, number: int) -> list[str]:
    passes = names.kernel.passes
    seen = {let.name for p in passes[:number] for let in p.row}
    lets = [let for let in passes[number].row if let.name not in seen] if number < len(passes) else []
    available = _available(names, number)
    if not lets:
        return [f"DEVICE void row(Pass<{number}>, Index, Values&) const {{}}"]
    body = printer.uses_values(lets, (), available)
    for let in lets:
        name = c_name(let.name)
        body.append(f"const {C_TYPES[let.dtype]} {name} = {printer.value(let, lane=layout.kind == 'columns')};")
        body.append(f"val.{name}[j] = {name};")
    return [
        f"DEVICE void row(Pass<{number}>, Index group, Values& val) const {{",
        "  const At at = Op::at(group, 0);",
        *_lane_loop("kLanes", body),
        "}",
    ]


def _available(names: Names, number: int) -> list[str]:
    """Names in `Values` before the body of pass `number`."""
    passes = names.kernel.passes
    found = [let.name for p in passes[: number + 1] for let in p.row]
    return found + [r.name for p in passes[:number] for r in p.reductions]


def _pass(names: Names, printer: OpPrinter, layout: Layout, number: int, p: Pass, held: set[str]) -> list[str]:
    lets: list[Let] = [*p.row, *p.body] if not layout.reduces else list(p.body)
    if not layout.reduces:
        lets += list(names.kernel.tail)
        p = Pass((), (), (), (*p.stores, *names.kernel.row_stores))
    fetched = [let for let in lets if printer.is_fetched(let)]
    ends = [r.value for r in p.reductions] + [s.value for s in p.stores]
    mine = held & {let.name for let in lets} if number else set()
    live = closure(ends, lets, mine) - {x.name for x in fetched if x.name in mine}
    members, loads = [], []
    for let in fetched:
        lanes, text = printer.fetch_text(let.value)  # type: ignore[arg-type]
        name = c_name(let.name)
        members.append(f"Lanes<{C_TYPES[let.dtype]}, {lanes}> {name};")
        loads.append(f"{'' if let.name in live else 'if (!REUSE) '}in.{name} = {text};")
    lines = [f"struct In{number} {{ {' '.join(members)} }};", "template <bool REUSE>",
             f"DEVICE In{number} fetch(Pass<{number}>, Flag<REUSE>, const At& at) const {{", f"  In{number} in;",
             *_indent(loads, 2), "  return in;", "}"]  # fmt: skip
    state = f"State{number}" if p.reductions else "Nothing"
    body = printer.lane_loop(p, number, lets, held, _available(names, number) if layout.reduces else [])
    extra = f", Held& held, {state} (&acc)[VEC], const Values& val" if layout.reduces else ""
    parameters = f"Pass<{number}>, Flag<REUSE>, const At& at, const In{number}& in{extra}"
    lines += ["template <bool REUSE>", f"DEVICE void body({parameters}) const {{"]
    for n, s in enumerate(p.stores):
        lines.append(f"  Lanes<{C_TYPES[names.plan.buffer(s.buffer).dtype]}, VEC> out{n};")
    lines += _lane_loop("VEC", body)
    lines += [f"  {text}" for n, s in enumerate(p.stores) if (text := printer.store_text(n, s))]
    lines.append("}")
    if layout.reduces:
        lines.append(f"DEVICE static {state} state(Pass<{number}>) {{ return {{}}; }}")
    if layout.reduces and p.reductions:
        takes = [f"val.{c_name(r.name)}[j] = result[j].{c_name(r.name)};" for r in p.reductions]
        lines += [f"DEVICE static void take(Pass<{number}>, {state} (&result)[kLanes], Values& val) {{",
                  *_lane_loop("kLanes", takes), "}"]  # fmt: skip
    return lines


def _finish(names: Names, printer: OpPrinter, layout: Layout) -> list[str]:
    kernel = names.kernel
    if not kernel.row_stores:
        return ["DEVICE void finish(Index, const Values&) const {}"]
    lane = layout.kind == "columns"
    available = [*names.row_lets, *(r.name for r in kernel.reductions)]
    body = printer.uses_values(kernel.tail, [s.value for s in kernel.row_stores], available)
    for let in kernel.tail:
        body.append(f"const {C_TYPES[let.dtype]} {c_name(let.name)} = {printer.value(let, lane)};")
    for s in kernel.row_stores:
        body.append(f"this->{s.buffer}[{printer.offset(s.index, lane)}] = {c_name(s.value)};")
    return ["DEVICE void finish(Index group, const Values& val) const {", "  const At at = Op::at(group, 0);",
            *_lane_loop("kLanes", body), "}"]  # fmt: skip


def _prefetch(printer: OpPrinter, layout: Layout, kernel: Kernel) -> list[str]:
    """Asks the L2 cache for an item of a row to come; only for what is read once, along the lanes."""
    lines, spans = [], []
    for let in kernel.passes[0].body:
        value = let.value
        if not isinstance(value, Load) or not printer.is_fetched(let) or layout.lane_stride(value.index) != 1:
            continue
        if any(t == 0 and n > 1 for t, n in zip(value.index.strides, layout.sizes, strict=False)):
            continue
        first = printer.offset(value.index, lane=False)
        lines.append(f"  prefetch_l2(this->{value.buffer} + ({first}));")
        spans.append(ITEMSIZE[let.dtype])
    step = f"{128 // max(spans)} / VEC" if spans and layout.kind != "columns" else "1"
    return [f"static constexpr int kPrefetchStep = {step};  // items in a cache line",
            f"DEVICE void prefetch(const At&{' at' if lines else ''}) const {{", *lines, "}"]  # fmt: skip
