// Host side: grids, shared memory and launch attributes.
#pragma once

#include "teams.cuh"

#pragma nv_diag_suppress 177  // members of Op that a layout does not need

// Blocks of `kernel` that the whole device can hold at once, with the kernel's shared memory limit raised as needed.
template <class Kernel>
int resident_blocks(Kernel kernel, int threads, int shared_bytes) {
  int device = 0, processors = 0, per_processor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (shared_bytes > 0) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, threads, shared_bytes);
  return processors * (per_processor > 0 ? per_processor : 1);
}

// Clusters that the whole device can hold at once: whole clusters in each group of neighbouring multiprocessors.
template <class Kernel>
int resident_clusters(Kernel kernel, const cudaLaunchConfig_t& config) {
  int clusters = 0;
  cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  return clusters;
}

template <class Op>
int launch_pointwise(const Op& op, cudaStream_t stream) {
  constexpr int64_t BLOCKS = ceil_div(Op::kItems, int64_t(Op::kThreads) * Op::kUnroll);
  int64_t grid = least(BLOCKS, 0x7fffffff);
  if constexpr (Op::kPersistent > 0) {
    static const int resident = resident_blocks(pointwise_kernel<Op>, Op::kThreads, 0);
    grid = least(grid, int64_t(resident) * Op::kPersistent);
  }
  pointwise_kernel<Op><<<static_cast<unsigned>(grid), Op::kThreads, 0, stream>>>(op);
  return cudaGetLastError();
}

template <int P, class Op>
void launch_split(const Op& op, char* workspace, cudaStream_t stream) {
  constexpr int64_t BLOCKS = ceil_div(Op::kAllGroups, Op::kGroups);
  if constexpr (P < Op::kPasses || Op::kHasFinish) {
    const unsigned grid = static_cast<unsigned>(P < Op::kPasses ? BLOCKS * Op::kTeam : BLOCKS);
    static const int once = resident_blocks(split_kernel<P, Op>, Op::kThreads, Op::kCombineBytes);
    (void)once;
    split_kernel<P, Op><<<grid, Op::kThreads, Op::kCombineBytes, stream>>>(op, workspace);
  }
  if constexpr (P < Op::kPasses) launch_split<P + 1>(op, workspace, stream);
}

// workspace: may be null where the team is a single block.
template <class Op>
int launch_rows(const Op& op, char* workspace, cudaStream_t stream) {
  constexpr int64_t BLOCKS = ceil_div(Op::kAllGroups, Op::kGroups);
  if constexpr (Op::kMode == SPLIT) {
    launch_split<0>(op, workspace, stream);
  } else {
    constexpr int BYTES = Op::kCombineBytes + Op::kWindowBytes +
                          Place<Op>::SHARED * Op::kThreads * int(sizeof(typename Op::Held));
    static const int resident = resident_blocks(row_kernel<Op>, Op::kThreads, BYTES);
    int64_t teams = least(BLOCKS, 0x7fffffff / Op::kTeam);
    cudaLaunchAttribute attribute[1] = {};
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(Op::kThreads);
    config.dynamicSmemBytes = BYTES;
    config.stream = stream;
    config.attrs = attribute;
    if (Op::kMode == GRID) {
      attribute[0].id = cudaLaunchAttributeCooperative;
      attribute[0].val.cooperative = 1;
      config.numAttrs = 1;
      teams = least(least(teams, resident / Op::kTeam), Op::kCounterBytes / 4);
      if (teams < 1) return cudaErrorCooperativeLaunchTooLarge;
      if (const int error = cudaMemsetAsync(workspace, 0, Op::kCounterBytes, stream)) return error;
    } else if (Op::kMode == CLUSTER) {
      static const int allowed =
          cudaFuncSetAttribute(row_kernel<Op>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
      if (allowed != 0) return allowed;
      attribute[0].id = cudaLaunchAttributeClusterDimension;
      attribute[0].val.clusterDim.x = Op::kTeam;
      attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
      config.numAttrs = 1;
      config.gridDim = dim3(Op::kTeam);
      static const int clusters = resident_clusters(row_kernel<Op>, config);
      if (clusters < 1) return cudaErrorInvalidClusterSize;
      if (Op::kPersistent > 0) teams = least(teams, int64_t(clusters) * Op::kPersistent);
    } else if (Op::kPersistent > 0) {
      teams = least(teams, int64_t(resident) * Op::kPersistent);
    }
    config.gridDim = dim3(static_cast<unsigned>(teams * Op::kTeam));
    if (const int error = cudaLaunchKernelEx(&config, row_kernel<Op>, op, workspace)) return error;
  }
  return cudaGetLastError();
}
