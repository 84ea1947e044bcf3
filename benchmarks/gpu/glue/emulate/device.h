// CUDA's device side for a host compiler: every block is one thread, and blocks run in turn.
//
// Included ahead of everything.  What the GPU's own instructions round is rounded by the host's.

#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>

using std::max;
using std::min;

inline thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
inline thread_local dim3 blockDim{1, 1, 1}, gridDim{1, 1, 1};

// benchmarks/gpu/build.py puts this where a launch's <<<grid, ...>>> was.
#define EMULATE(grid)                                                  \
  for (blockIdx = {0, 0, 0}, gridDim = (grid); blockIdx.x < gridDim.x; \
       ++blockIdx.x)

#undef __forceinline__
#define __forceinline__ inline
#define __syncthreads()
template <typename T>
inline T __ldg(const T* address) {
  return *address;
}
template <typename T>
inline T __shfl_xor_sync(unsigned, T value, int) {
  return value;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }

namespace vllm {  // of kernels that are compiled and never launched
extern unsigned char smem_raw[];
__attribute__((weak)) unsigned char smem_raw[1];
}  // namespace vllm
