// Kernels over rows, and how blocks of a team exchange their partial results.
#pragma once

#include "rows.cuh"

// Barrier over the cluster, and a word of another block's shared memory.
DEVICE void cluster_barrier() {
#ifdef __CUDA_ARCH__
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
DEVICE unsigned remote_word(const void* mine, int rank) {
  unsigned word = 0;
#ifdef __CUDA_ARCH__
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u32 %0, [a]; }"
               : "=r"(word) : "r"(address), "r"(rank) : "memory");
#endif
  return word;
}
DEVICE unsigned load_acquire(const unsigned* p) {
#ifdef __CUDA_ARCH__
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
#else
  return *reinterpret_cast<const volatile unsigned*>(p);
#endif
}
// Past L1, which other blocks' writes do not reach.
template <class S>
DEVICE S load_shared_by_all(const S* p) {
  constexpr int WORDS = sizeof(S) / 4;
  static_assert(sizeof(S) % 4 == 0);
  unsigned words[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words[i] = __ldcg(reinterpret_cast<const unsigned*>(p) + i);
  S s;
  memcpy(&s, words, sizeof(S));
  return s;
}

// One block's membership in a team, for the modes in which a team shares one kernel.
template <class Op>
struct Team {
  char* scratch;  // shared memory for `combine`
  char* window;   // partial results: shared memory (CLUSTER) or the team's part of the workspace (GRID)
  unsigned* arrivals = nullptr;
  int rank;
  unsigned turn = 0;

  DEVICE Team(char* shared, char* workspace) : scratch(shared), rank(blockIdx.x % Op::kTeam) {
    const unsigned index = blockIdx.x / Op::kTeam;
    if constexpr (Op::kMode == GRID) {
      arrivals = reinterpret_cast<unsigned*>(workspace) + index;
      window = workspace + Op::kCounterBytes + size_t(index) * 2 * Op::kTeam * Op::kPartialBytes;
    } else {
      window = shared + Op::kCombineBytes;
    }
  }

  DEVICE void barrier() {
    if constexpr (Op::kMode == CLUSTER) {
      cluster_barrier();
    } else {
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrivals, 1u);
        while (load_acquire(arrivals) < (turn + 1) * Op::kTeam) __nanosleep(20);
      }
      __syncthreads();
    }
  }

  // Two windows take turns: a block writes one again only after a barrier that follows every read of it.
  template <class S, int N>
  DEVICE void reduce(S (&s)[N], int position) {
    combine<Op>(s, scratch);
    if constexpr (Op::kTeam > 1) {
      const int group = Op::kAlongRow ? threadIdx.x / Place<Op>::PER_GROUP : threadIdx.x % Op::kGroups;
      const unsigned side = turn % 2;
      char* mine = window + (Op::kMode == GRID ? side * Op::kTeam + rank : side) * size_t(Op::kPartialBytes);
      if (position == 0) {
#pragma unroll
        for (int j = 0; j < N; ++j) reinterpret_cast<S*>(mine)[group * N + j] = s[j];
      }
      barrier();
      S all[N];
      for (int r = position; r < Op::kTeam; r += Place<Op>::PER_GROUP) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          S other;
          if constexpr (Op::kMode == GRID) {
            const char* theirs = window + (side * Op::kTeam + r) * size_t(Op::kPartialBytes);
            other = load_shared_by_all(reinterpret_cast<const S*>(theirs) + group * N + j);
          } else {
            static_assert(sizeof(S) % 4 == 0);
            unsigned words[sizeof(S) / 4];
#pragma unroll
            for (int i = 0; i < int(sizeof(S) / 4); ++i)
              words[i] = remote_word(mine + (group * N + j) * sizeof(S) + 4 * i, r);
            memcpy(&other, words, sizeof(S));
          }
          all[j].merge(other);
        }
      }
      combine<Op>(all, scratch);
#pragma unroll
      for (int j = 0; j < N; ++j) s[j] = all[j];
      ++turn;
    }
  }
};

// Brings what a later turn of this block reads into the L2 cache, so that memory is busy during barriers and stores.
template <class Op>
DEVICE void prefetch(const Op& op, const Place<Op>& place) {
  if (place.position % Op::kPrefetchStep != 0) return;
  for (typename Op::Inner k = 0; k < Place<Op>::STEPS; ++k)
    if (place.has(k)) op.prefetch(op.at(place.group, place.item(k)));
}

// next: the groups of this block's next turn, or at least as many as there are.
template <int P, class Op>
DEVICE void run_passes(const Op& op, Team<Op>& team, const Place<Op>& place, typename Op::Index next,
                       typename Op::Held* regs, typename Op::Held* shared, typename Op::Values& v) {
  op.row(Pass<P>{}, place.group, v);
  if constexpr (P < Op::kPasses) {
    using S = decltype(op.state(Pass<P>{}));
    S s[Op::kVec];
    sweep<P == 0 || P == Op::kReplace, (P > 0)>(op, Pass<P>{}, place, regs, shared, v, s);
    if constexpr (P == 0 && Op::kPrefetch) {
      if (next < ceil_div(Op::kAllGroups, Op::kGroups)) prefetch(op, Place<Op>(next, team.rank));
    }
    if constexpr (!std::is_same_v<S, Nothing>) {
      S result[Op::kLanes];
      join_lanes<Op>(s, result);
      team.reduce(result, place.position);
      op.take(Pass<P>{}, result, v);
    }
    run_passes<P + 1>(op, team, place, next, regs, shared, v);
  } else {
    if (place.active && place.position == 0 && team.rank == 0) op.finish(place.group, v);
  }
}

template <class Op>
__global__ void __launch_bounds__(Op::kThreads, Op::kBlocksPerSm)
    row_kernel(const __grid_constant__ Op op, char* workspace) {
  using Index = typename Op::Index;
  extern __shared__ __align__(16) char shared[];
  Team<Op> team(shared, workspace);
  auto* held = reinterpret_cast<typename Op::Held*>(shared + Op::kCombineBytes + Op::kWindowBytes) + threadIdx.x;
  constexpr Index BLOCKS = ceil_div(Op::kAllGroups, Op::kGroups);
  for (Index block = blockIdx.x / Op::kTeam; block < BLOCKS; block += gridDim.x / Op::kTeam) {
    const Place<Op> place(block, team.rank);
    typename Op::Held regs[Place<Op>::REGS > 0 ? Place<Op>::REGS : 1];
    typename Op::Values v;
    run_passes<0>(op, team, place, block + gridDim.x / Op::kTeam, regs, held, v);
  }
  if constexpr (Op::kMode == CLUSTER) cluster_barrier();  // nobody leaves while its shared memory may be read
}

// Partial results of pass P in the workspace of SPLIT mode: [team][group][lane].
template <int P, class Op>
__host__ __device__ constexpr size_t partials_offset() {
  if constexpr (P == 0) return 0;
  else return partials_offset<P - 1, Op>() + size_t(Op::kTeam) * Op::kAllGroups * Op::kLanes * Op::kStateBytes;
}

template <int P, int END, class Op>
DEVICE void gather(const Op& op, const Place<Op>& place, char* scratch, const char* workspace,
                   typename Op::Values& v) {
  op.row(Pass<P>{}, place.group, v);
  if constexpr (P < END) {
    using S = decltype(op.state(Pass<P>{}));
    if constexpr (!std::is_same_v<S, Nothing>) {
      const S* partials = reinterpret_cast<const S*>(workspace + partials_offset<P, Op>());
      S s[Op::kLanes];
#pragma unroll 4
      for (int r = place.position; r < Op::kTeam; r += Place<Op>::PER_GROUP)
#pragma unroll
        for (int j = 0; j < Op::kLanes; ++j)
          s[j].merge(load_shared_by_all(partials + (size_t(r) * Op::kAllGroups + place.group) * Op::kLanes + j));
      combine<Op>(s, scratch);
      op.take(Pass<P>{}, s, v);
    }
    gather<P + 1, END>(op, place, scratch, workspace, v);
  }
}

// One pass as a kernel of its own; after the last pass, P == PASSES finishes the rows.
template <int P, class Op>
__global__ void __launch_bounds__(Op::kThreads, Op::kBlocksPerSm)
    split_kernel(const __grid_constant__ Op op, char* workspace) {
  extern __shared__ __align__(16) char shared[];
  constexpr int SLICES = P < Op::kPasses ? Op::kTeam : 1;
  const Place<Op> place(blockIdx.x / SLICES, blockIdx.x % SLICES);
  typename Op::Values v;
  gather<0, P>(op, place, shared, workspace, v);
  if constexpr (P < Op::kPasses) {
    using S = decltype(op.state(Pass<P>{}));
    S s[Op::kVec];
    typename Op::Held unused[1];
    sweep<false, false>(op, Pass<P>{}, place, unused, unused, v, s);
    if constexpr (!std::is_same_v<S, Nothing>) {
      S result[Op::kLanes];
      join_lanes<Op>(s, result);
      combine<Op>(result, shared);
      S* partials = reinterpret_cast<S*>(workspace + partials_offset<P, Op>());
      if (place.active && place.position == 0) {
#pragma unroll
        for (int j = 0; j < Op::kLanes; ++j)
          partials[(size_t(blockIdx.x % SLICES) * Op::kAllGroups + place.group) * Op::kLanes + j] = result[j];
      }
    }
  } else {
    if (place.active && place.position == 0) op.finish(place.group, v);
  }
}
