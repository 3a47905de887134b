"""Schedule spaces: which macros a kernel's source has, the values worth trying, and a good guess by shape.

The guess follows what a Hopper GPU rewards (NVIDIA, Hopper tuning guide): 16-byte accesses, tens of kilobytes in
flight on each multiprocessor, and rows that are swept several times held on the chip. In `rows` layouts a row goes to
a few threads, a block, or a team of blocks, by how many bytes of it must be held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent.expert.cuda.layout import Layout
from cuda_agent.expert.cuda.op_struct import Names
from cuda_agent.expert.cuda.source import COUNTER_BYTES
from cuda_agent.expert.cuda.states import state_bytes
from cuda_agent.expert.emitter import Space
from cuda_agent.expert.ir import ITEMSIZE, Load, Op

BLOCK, CLUSTER, GRID, SPLIT = 0, 1, 2, 3  # MODE, see rows.cuh
ALL = 1024  # SHARED_ITEMS: as many as fit
EFFORT = {"exp": 1, "exp2": 1, "log": 1, "log2": 1, "log10": 1, "tanh": 1, "erf": 1, "sigmoid": 1, "pow": 1,
          "expm1": 2, "log1p": 2, "sin": 2, "cos": 2, "tan": 3, "erfc": 2, "sinh": 2, "cosh": 2, "asin": 2, "acos": 2,
          "atan": 2, "asinh": 3, "acosh": 3, "atanh": 3, "atan2": 3}  # fmt: skip


@dataclass(frozen=True)
class DeviceFacts:
    """processors: multiprocessors. shared_bytes: shared memory of each. Defaults: H100 and H200 (SXM)."""

    processors: int = 132
    shared_bytes: int = 228 * 1024


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << max(0, (max(1, least) - 1).bit_length())


def clamp(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def space_of(names: Names, layout: Layout, facts: DeviceFacts) -> Space:
    build = _columns if layout.kind == "columns" else _rows if layout.reduces else _pointwise
    default, choices = build(names, layout, facts)
    _fit_registers(default, names, layout)
    if layout.reduces:
        default["SHARED_LIMIT"] = facts.shared_bytes
    tried = {macro: tuple(sorted({*values, default[macro]})) for macro, values in choices.items()}
    return Space(default, {macro: values for macro, values in tried.items() if len(values) > 1})


def registers(schedule: Mapping[str, int], names: Names, layout: Layout) -> int:
    """Estimate for one thread, from what is loaded ahead, held and accumulated; on the high side."""
    vec = schedule["VEC"]
    keeps = bool(schedule.get("REG_ITEMS") or schedule.get("SHARED_ITEMS")) and schedule["MODE"] != SPLIT
    held = {let.name for let in names.held} if keeps else set()
    kept = schedule.get("REG_ITEMS", 0) * vec * held_bytes(names) // 4 if held else 0
    base = 28 + (8 if layout.index_type == "int64_t" else 0) + (6 if layout.masked else 0)
    most = 0
    for number, p in enumerate(names.kernel.passes):
        lanes = 0
        for let in p.body:
            value = let.value
            if isinstance(value, Load) and not (number and let.name in held):
                lanes += max(4, ITEMSIZE[let.dtype] * (vec if layout.lane_stride(value.index) else 1)) // 4
        states = sum(3 if r.kind.startswith("arg") else ITEMSIZE[r.dtype] // 4 or 1 for r in p.reductions) * vec
        most = max(most, schedule["UNROLL"] * lanes + states)
    return base + kept + most + len(names.kernel.reductions) * (vec if layout.kind == "columns" else 1)


def _fit_registers(schedule: dict[str, int], names: Names, layout: Layout) -> None:
    """Fewer blocks on a multiprocessor, or fewer loads ahead, where the register file would not hold them."""
    while schedule["UNROLL"] > 1 and registers(schedule, names, layout) > min(104, 65536 // schedule["THREADS"]):
        schedule["UNROLL"] //= 2
    wanted = registers(schedule, names, layout)
    if schedule.get("MODE") == GRID:  # two blocks have to share a multiprocessor
        wanted -= 8
    fitting = 65536 // (schedule["THREADS"] * wanted)
    schedule["BLOCKS_PER_SM"] = clamp(1, schedule["BLOCKS_PER_SM"], max(1, fitting))


def _vector(names: Names, layout: Layout) -> int:
    """16 bytes of the narrowest bulk access, but at most 8 lanes and 32 bytes of any."""
    largest = max((ITEMSIZE[names.plan.buffer(b).dtype] for b, _ in names.kernel.accesses()), default=4)
    allowed = [v for v in layout.vectors if v <= 8 and v * min(largest, 8) <= 32] or [layout.vectors[0]]
    return max(allowed)


def _pointwise(names: Names, layout: Layout, facts: DeviceFacts) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Small blocks that touch 2 to 4 KiB of each tensor, in the order of memory: an H200 then runs at copy speed."""
    vec = _vector(names, layout)
    body = [let for p in names.kernel.passes for let in p.body]
    vectors = [x.value.index for x in body if isinstance(x.value, Load) and layout.is_vector(x.value.index)]
    effort = sum(EFFORT.get(let.value.fn, 0) for let in body if isinstance(let.value, Op))
    threads, unroll = (128, 1) if effort <= 1 or len(vectors) > 1 else (128, 2) if effort == 2 else (64, 4)
    repeated = sum(1 for i in vectors if any(t == 0 and n > 1 for t, n in zip(i.strides, layout.sizes, strict=False)))
    default = {"VEC": vec, "THREADS": threads, "UNROLL": unroll, "BLOCKS_PER_SM": 1024 // threads,
               "PERSISTENT": 1 if repeated > 1 else 0, "LOAD_CACHE": 1, "STORE_CACHE": 1}  # fmt: skip
    if repeated > 1:
        default["UNROLL"] = 2
    return default, {"VEC": tuple(v for v in layout.vectors if v >= vec // 2), "UNROLL": (1, 2, 4, 8),
                     "THREADS": (64, 128, 256, 512), "PERSISTENT": (0, 1, 4), "STORE_CACHE": (0, 1),
                     "LOAD_CACHE": (0, 1, 2)}  # fmt: skip


def held_bytes(names: Names) -> int:
    """Of one lane."""
    return sum(ITEMSIZE[let.dtype] for let in names.held)


def _rows(names: Names, layout: Layout, facts: DeviceFacts) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    kernel, vec = names.kernel, _vector(names, layout)
    items, rows = max(1, -(-kernel.row_size // vec)) + (layout.kind == "shifted"), kernel.rows
    held = held_bytes(names) * vec
    default = {"VEC": vec, "THREADS": 256, "ROWS_PER_BLOCK": 1, "TEAM": 1, "MODE": BLOCK, "REG_ITEMS": 0,
               "SHARED_ITEMS": 0, "UNROLL": 4, "BLOCKS_PER_SM": 2, "PERSISTENT": 0, "PREFETCH": 0, "LOAD_CACHE": 1,
               "STORE_CACHE": 1}  # fmt: skip
    choices: dict[str, tuple[int, ...]] = {"UNROLL": (1, 2, 4, 8), "LOAD_CACHE": (0, 1, 2), "STORE_CACHE": (0, 1)}
    registers = max(1, 128 // held) if held else 8  # items that fit in 32 registers
    many = rows >= 4 * facts.processors
    if items <= 256 and rows >= facts.processors:
        per_row = clamp(1, power_of_two(-(-items // 4)), 32)
        default |= {"ROWS_PER_BLOCK": 256 // per_row, "REG_ITEMS": min(registers, -(-items // per_row)) if held else 0,
                    "UNROLL": 2, "BLOCKS_PER_SM": 2}  # fmt: skip
        choices |= {"ROWS_PER_BLOCK": tuple(256 // p for p in (per_row // 2, per_row, per_row * 2, 128) if p >= 1),
                    "BLOCKS_PER_SM": (2, 4, 6)}  # fmt: skip
    elif items <= 1024 * registers and (many or items <= 2048):
        threads = clamp(128, power_of_two(-(-items // (8 if held else 4))), 1024)
        if held:
            while threads * registers < items and threads < 1024:
                threads *= 2
        default |= {"THREADS": threads, "REG_ITEMS": min(registers, -(-items // threads)) if held else 0,
                    "BLOCKS_PER_SM": max(1, 1024 // threads), "UNROLL": 8 if held else 4}  # fmt: skip
        choices |= {"THREADS": (128, 256, 512, 1024), "BLOCKS_PER_SM": (1, 2, 4),
                    "REG_ITEMS": (0, 2, 4, 8, 16)}  # fmt: skip
    elif held:
        _hold_long_rows(default, choices, items, held, rows, facts)
    else:
        team = split_team(items, rows)
        if items <= 16384 and team < 4:  # a second launch would take longer
            team = 1
            default["THREADS"] = 512
        default |= {"TEAM": team, "MODE": SPLIT if team > 1 else BLOCK, "BLOCKS_PER_SM": 4}
        choices |= {"TEAM": (1, max(1, team // 2), team, team * 2, team * 4), "THREADS": (128, 256, 512, 1024),
                    "BLOCKS_PER_SM": (2, 4, 8), "MODE": (BLOCK, SPLIT)}  # fmt: skip
    return default, choices


def _hold_long_rows(default: dict[str, int], choices: dict[str, tuple[int, ...]], items: int, held: int, rows: int,
                    facts: DeviceFacts) -> None:  # fmt: skip
    """Rows that exceed the registers of a block: shared memory, of teams of blocks where one has not enough.

    On an H200, pairs of large blocks do best as clusters. Larger teams do better through global memory: clusters of 16
    leave multiprocessors idle. Two blocks share a multiprocessor then, so that one loads while another stores or waits.
    """
    default |= {"PERSISTENT": 1, "PREFETCH": 1, "SHARED_ITEMS": ALL}
    choices |= {"THREADS": (256, 512, 1024), "PERSISTENT": (0, 1), "PREFETCH": (0, 1), "SHARED_ITEMS": (0, ALL),
                "REG_ITEMS": (0, 2, 4), "BLOCKS_PER_SM": (1, 2, 3), "UNROLL": (2, 4, 8)}  # fmt: skip

    def team_of(threads: int, share: int) -> int:
        slots = (facts.shared_bytes // share - 2048) // (threads * held)  # items of a thread
        return power_of_two(-(-items // (slots * threads)))

    single = next((share for share in (3, 2) if team_of(512, share) == 1), 0)
    small, whole = team_of(1024, 1), team_of(512, 2)
    if single:
        default |= {"THREADS": 512, "BLOCKS_PER_SM": single}
        choices["TEAM"] = (1, 2, 4)
        choices["MODE"] = (BLOCK, CLUSTER)
    elif small <= 2:
        default |= {"THREADS": 1024, "BLOCKS_PER_SM": 1, "TEAM": small, "MODE": CLUSTER}
        choices |= {"TEAM": (1, 2, 3, 4), "MODE": (BLOCK, CLUSTER, GRID)}
    elif whole <= facts.processors and rows * whole >= facts.processors:
        steps = -(-items // (whole * 512))
        default |= {"THREADS": 512, "BLOCKS_PER_SM": 2, "TEAM": whole, "MODE": GRID, "UNROLL": 4 if steps % 8 else 8}
        choices |= {
            "TEAM": tuple({whole // 2, whole, min(whole * 2, facts.processors)}),
            "MODE": (CLUSTER, GRID, SPLIT),
        }
    else:  # one sweep of the whole tensor after another
        default |= {"MODE": SPLIT, "THREADS": 256, "BLOCKS_PER_SM": 4, "TEAM": split_team(items, rows),
                    "PERSISTENT": 0, "PREFETCH": 0, "SHARED_ITEMS": 0}  # fmt: skip
        del choices["PERSISTENT"], choices["PREFETCH"], choices["SHARED_ITEMS"], choices["REG_ITEMS"]
        choices |= {"BLOCKS_PER_SM": (2, 4, 8), "TEAM": tuple(default["TEAM"] * f for f in (1, 2, 4))}


def split_team(items: int, rows: int) -> int:
    """Blocks for each of a few long rows: many short ones balance best, powers of two divide most rows evenly."""
    wanted = clamp(1, 4096 // max(1, rows), max(1, items // (256 * 16)))
    return 1 << (wanted.bit_length() - 1)


def _columns(names: Names, layout: Layout, facts: DeviceFacts) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    kernel, vec = names.kernel, _vector(names, layout)
    groups, items = kernel.rows // vec, kernel.row_size
    columns = clamp(1, power_of_two(layout.sizes[layout.axis] // vec), 128 // min(vec, 4))
    held = held_bytes(names) * vec
    threads = clamp(max(32, columns), columns * power_of_two(min(items, 8)), 512 if held or vec > 1 else 1024)
    blocks = -(-groups // columns)
    team = clamp(1, facts.processors * 8 // max(1, blocks), max(1, items // (threads // columns * 8)))
    if held:
        while threads < 512 and items * held > threads // columns * 128:
            threads *= 2
    steps = -(-items // (threads // columns))
    positions = any(r.kind.startswith("arg") for r in kernel.reductions)
    default = {"VEC": vec, "THREADS": threads, "COLUMNS": columns, "TEAM": team,
               "MODE": BLOCK if held and team == 1 else SPLIT,  # a team of one needs no second kernel
               "REG_ITEMS": 0, "SHARED_ITEMS": 0, "UNROLL": 8 if positions else 4, "BLOCKS_PER_SM": 2,
               "PERSISTENT": 0, "PREFETCH": 0, "LOAD_CACHE": 1 if held else 0, "STORE_CACHE": 1}  # fmt: skip
    choices: dict[str, tuple[int, ...]] = {
        "VEC": tuple(v for v in layout.vectors if v <= vec), "THREADS": (128, 256, 512, 1024), "UNROLL": (2, 4, 8),
        "COLUMNS": tuple(c for c in (columns // 2, columns, columns * 2, columns * 4, columns * 8) if 1 <= c <= 1024),
        "BLOCKS_PER_SM": (1, 2, 4), "LOAD_CACHE": (0, 1, 2),
    }  # fmt: skip
    if default["MODE"] == SPLIT:
        choices["TEAM"] = (1, max(1, team // 2), team, team * 2)
    if held:
        default["REG_ITEMS"] = min(steps, max(1, 128 // held))
        choices["REG_ITEMS"] = (0, 4, 8, 16)
        if steps > default["REG_ITEMS"]:
            default["SHARED_ITEMS"] = ALL
            choices["SHARED_ITEMS"] = (0, ALL)
    return default, choices


def workspace_bytes(names: Names, layout: Layout, space: Space, facts: DeviceFacts) -> int:
    """Enough for every schedule of the space; 0 if no schedule has a team."""
    teams = space.choices.get("TEAM", (space.default.get("TEAM", 1),))
    modes = space.choices.get("MODE", (space.default.get("MODE", BLOCK),))
    if not layout.reduces or max(teams) == 1:
        return 0
    kernel, state = names.kernel, state_bytes(names.kernel, names.dtypes)
    total = 0
    if SPLIT in modes:
        passes = max((n + 1 for n, p in enumerate(kernel.passes) if p.reductions), default=0)
        total = max(teams) * kernel.rows * state * passes
    if GRID in modes:
        widest = 1
        if layout.kind == "columns":
            widest = max(space.choices.get("COLUMNS", (space.default["COLUMNS"],))) * max(layout.vectors)
        total = max(total, COUNTER_BYTES + 2 * facts.processors * 32 * widest * state)
    return total
