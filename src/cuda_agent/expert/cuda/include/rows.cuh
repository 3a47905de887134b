// Rows that are reduced and perhaps swept again: how threads, blocks and teams of blocks share them.
//
// An `Op` (generated) says what is computed. Its loop nest is cut into *items* of VEC lanes; *groups* of items share
// reductions:
//   ALONG_ROW   a group is one row, its lanes are neighbours within the row, and a reduction joins all lanes;
//   otherwise   a group is VEC neighbouring rows (columns of a matrix, say), and each lane has its own result.
// A block of THREADS works on GROUPS groups at a time, THREADS / GROUPS threads to each. With a team of several blocks
// share a group, each a slice of its items. Items of the first pass that later passes need again stay on the chip:
// the first REGS of a thread in its registers, the next SHARED in shared memory; the rest is read again.
#pragma once

#include "lanes.cuh"

template <int N>
using Pass = std::integral_constant<int, N>;
template <bool B>
using Flag = std::bool_constant<B>;

// How a team of blocks exchanges results: by itself (a team of one), through the shared memory of a thread-block
// cluster, through global memory with a barrier over co-resident blocks, or by one kernel for each pass.
enum Mode { BLOCK = 0, CLUSTER = 1, GRID = 2, SPLIT = 3 };

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
__host__ __device__ constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

struct Nothing {
  DEVICE void merge(const Nothing&) {}
};

// What a thread is within its block and team, and the items it owns. The blocks of a team go through a row side by side,
// so that together they read memory in order.
template <class Op>
struct Place {
  using Index = typename Op::Index;
  using Inner = typename Op::Inner;
  static constexpr int PER_GROUP = Op::kThreads / Op::kGroups;
  static constexpr int CHUNK = Op::kMode == SPLIT ? Op::kUnroll : 1;  // steps in which a block stays among neighbours
  static constexpr int64_t TURN = int64_t(Op::kTeam) * PER_GROUP * CHUNK;
  static constexpr int64_t STEPS = ceil_div(Op::kItems, TURN) * CHUNK;
  static constexpr bool EVEN = Op::kItems % TURN == 0;
  static constexpr int REGS = Op::kMode == SPLIT || Op::kRegItems < 0 ? 0 : Op::kRegItems < STEPS ? Op::kRegItems : STEPS;
  static constexpr int SHARED =
      Op::kMode == SPLIT ? 0 : (Op::kSharedItems < STEPS - REGS ? Op::kSharedItems : STEPS - REGS);

  Index group;  // of this thread
  int rank;     // of this block in its team
  int position;
  bool active;  // whether the group exists

  DEVICE Place(Index block, int rank) : rank(rank) {
    const int local = Op::kAlongRow ? threadIdx.x / PER_GROUP : threadIdx.x % Op::kGroups;
    position = Op::kAlongRow ? threadIdx.x % PER_GROUP : threadIdx.x / Op::kGroups;
    group = block * Op::kGroups + local;
    active = int64_t(group) < Op::kAllGroups;
    if (!active) group = Op::kAllGroups - 1;
  }
  DEVICE bool has(Inner step) const { return active && (EVEN || item(step) < Inner(Op::kItems)); }
  DEVICE Inner item(Inner step) const {
    if constexpr (CHUNK == 1) return (step * Op::kTeam + rank) * PER_GROUP + position;
    const auto k = std::make_unsigned_t<Inner>(step);
    return (Inner(k / CHUNK) * Op::kTeam + rank) * (PER_GROUP * CHUNK) + Inner(k % CHUNK) * PER_GROUP + position;
  }
};

template <class S>
DEVICE S shuffle_xor(const S& s, int mask) {
  constexpr int WORDS = (sizeof(S) + 3) / 4;
  unsigned words[WORDS] = {};
  memcpy(words, &s, sizeof(S));
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
  S other;
  memcpy(&other, words, sizeof(S));
  return other;
}

// Joins the states of all threads of a group; all of them get the same result.
template <class Op, class S, int N>
DEVICE void combine(S (&s)[N], char* scratch) {
  constexpr int PER_GROUP = Place<Op>::PER_GROUP;
  S* shared = reinterpret_cast<S*>(scratch);
  if constexpr (Op::kAlongRow) {
#pragma unroll
    for (int mask = (PER_GROUP < 32 ? PER_GROUP : 32) / 2; mask > 0; mask /= 2) s[0].merge(shuffle_xor(s[0], mask));
    if constexpr (PER_GROUP > 32) {
      constexpr int WARPS = PER_GROUP / 32;
      constexpr int SLOTS = WARPS > 16 ? 32 : WARPS > 8 ? 16 : WARPS > 4 ? 8 : WARPS > 2 ? 4 : 2;
      __syncthreads();
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s[0];
      __syncthreads();
      const int slot = threadIdx.x % SLOTS;
      s[0] = slot < WARPS ? shared[slot] : S();
#pragma unroll
      for (int mask = SLOTS / 2; mask > 0; mask /= 2) s[0].merge(shuffle_xor(s[0], mask));
    }
  } else if constexpr (PER_GROUP > 1) {
    const int group = threadIdx.x % Op::kGroups, position = threadIdx.x / Op::kGroups;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; ++j) shared[(position * N + j) * Op::kGroups + group] = s[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; ++j) {
      s[j] = shared[j * Op::kGroups + group];
      for (int p = 1; p < PER_GROUP; ++p) s[j].merge(shared[(p * N + j) * Op::kGroups + group]);
    }
  }
}

// Steps [begin, end) of a thread, UNROLL at a time, so that that many loads are in flight.
template <bool REUSE, class Op, class P, class S, class Keep>
DEVICE void sweep_steps(const Op& op, P pass, const Place<Op>& place, typename Op::Inner begin, typename Op::Inner end,
                        Keep keep, const typename Op::Values& v, S (&s)[Op::kVec]) {
  using In = decltype(op.fetch(pass, Flag<REUSE>{}, op.at(0, 0)));
  using Inner = typename Op::Inner;
  constexpr int U = Op::kUnroll;
  auto turn = [&](auto whole, Inner k) {
    constexpr bool WHOLE = decltype(whole)::value;  // no step is missing
    In in[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (WHOLE || (k + u < end && place.has(k + u)))
        in[u] = op.fetch(pass, Flag<REUSE>{}, op.at(place.group, place.item(k + u)));
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (WHOLE || (k + u < end && place.has(k + u)))
        keep(k + u, op.at(place.group, place.item(k + u)), in[u], s);
  };
#pragma unroll 1
  for (Inner k = begin; k < end; k += U) {
    if (k + U <= end && place.has(k + U - 1)) turn(Flag<true>{}, k);
    else turn(Flag<false>{}, k);
  }
}

// One pass over the items of a thread. SAVE: keep what later passes need; REUSE: take what an earlier pass kept.
template <bool SAVE, bool REUSE, class Op, class P, class S>
DEVICE void sweep(const Op& op, P pass, const Place<Op>& place, typename Op::Held* regs, typename Op::Held* shared,
                  const typename Op::Values& v, S (&s)[Op::kVec]) {
  using Inner = typename Op::Inner;
  using Held = typename Op::Held;
  using In = decltype(op.fetch(pass, Flag<REUSE>{}, op.at(0, 0)));
  constexpr int U = Op::kUnroll;
  constexpr int REGS = Place<Op>::REGS, SHARED = Place<Op>::SHARED;
#pragma unroll
  for (int k = 0; k < REGS; k += U) {
    In in[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (k + u < REGS && place.has(k + u))
        in[u] = op.fetch(pass, Flag<REUSE>{}, op.at(place.group, place.item(k + u)));
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (k + u < REGS && place.has(k + u))
        op.body(pass, Flag<REUSE>{}, op.at(place.group, place.item(k + u)), in[u], regs[k + u], s, v);
  }
  if constexpr (SHARED > 0) {
    sweep_steps<REUSE>(op, pass, place, Inner(REGS), Inner(REGS + SHARED),
                       [&](Inner k, const auto& at, const In& in, S(&t)[Op::kVec]) {
                         Held* slot = shared + (k - REGS) * Op::kThreads;
                         Held held;
                         if (REUSE) held = *slot;
                         op.body(pass, Flag<REUSE>{}, at, in, held, t, v);
                         if (SAVE) *slot = held;
                       },
                       v, s);
  }
  constexpr Inner BEGIN = REGS + SHARED, END = Place<Op>::STEPS;
  if constexpr (BEGIN < END) {
    using Reread = decltype(op.fetch(pass, Flag<false>{}, op.at(0, 0)));
    auto body = [&](Inner, const auto& at, const Reread& in, S(&t)[Op::kVec]) {
      Held unused;
      op.body(pass, Flag<false>{}, at, in, unused, t, v);
    };
    constexpr Inner CHUNK = 256;  // partial results bound the rounding error of long sums
    if constexpr (END - BEGIN <= 2 * CHUNK || std::is_same_v<S, Nothing>) {
      sweep_steps<false>(op, pass, place, BEGIN, END, body, v, s);
    } else {
      for (Inner k = BEGIN; k < END; k += CHUNK) {
        S t[Op::kVec];
        sweep_steps<false>(op, pass, place, k, k + CHUNK < END ? k + CHUNK : END, body, v, t);
#pragma unroll
        for (int j = 0; j < Op::kVec; ++j) s[j].merge(t[j]);
      }
    }
  }
}

// Lanes of a thread to results of its group: all lanes are one along a row.
template <class Op, class S>
DEVICE void join_lanes(S (&s)[Op::kVec], S (&result)[Op::kLanes]) {
  if constexpr (Op::kAlongRow) {
#pragma unroll
    for (int width = Op::kVec / 2; width > 0; width /= 2)
#pragma unroll
      for (int j = 0; j < width; ++j) s[j].merge(s[j + width]);
  }
#pragma unroll
  for (int j = 0; j < Op::kLanes; ++j) result[j] = s[j];
}

// A pointwise kernel: every item is independent, UNROLL of them are in flight in each thread.
template <class Op>
__global__ void __launch_bounds__(Op::kThreads, Op::kBlocksPerSm) pointwise_kernel(const __grid_constant__ Op op) {
  using Index = typename Op::Index;
  using In = decltype(op.fetch(Pass<0>{}, Flag<false>{}, op.at(0, 0)));
  constexpr int U = Op::kUnroll;
  const Index stride = Index(gridDim.x) * (Op::kThreads * U);
  for (Index first = Index(blockIdx.x) * (Op::kThreads * U) + threadIdx.x; first < Index(Op::kItems); first += stride) {
    In in[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Index t = first + u * Op::kThreads;
      if (t < Index(Op::kItems)) in[u] = op.fetch(Pass<0>{}, Flag<false>{}, op.at(0, t));
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Index t = first + u * Op::kThreads;
      if (t < Index(Op::kItems)) op.body(Pass<0>{}, Flag<false>{}, op.at(0, t), in[u]);
    }
  }
}
