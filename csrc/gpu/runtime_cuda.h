// runtime.h on CUDA: launches, waves and numbers. memory_cuda.h has the memory.
#pragma once

#include <cuda_runtime.h>

#define NGP_KERNEL(threads) static __global__ void __launch_bounds__(threads)
#define NGP_RESIDENT_KERNEL(threads, blocks) static __global__ void __launch_bounds__(threads, blocks)
#define NGP_DEVICE __device__ __forceinline__

#include <algorithm>

#include "gpu/grid.h"
#include "gpu/memory_cuda.h"
#include "gpu/pairs.h"

namespace ngram_ple::gpu {

// --- Launch -----------------------------------------------------------------------------------------
// Whether the current device runs code in which await_predecessors() waits (sm_90 and later): then a launch
// need not wait for the kernel before it to have ended altogether.
inline bool kernels_can_wait() {
  constexpr int kCompiled[] = {__CUDA_ARCH_LIST__};
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return false;
  for (const int arch : kCompiled) {
    if (arch >= 900 && arch <= 100 * major + 10 * minor) return true;
  }
  return false;
}

inline uint32_t device_wave_size() { return 32; }

template <class... Params, class... Args>
void launch(const char* op, void (*kernel)(Params...), const Grid& grid, Stream stream, Args... args) {
  if (grid.blocks <= 0) return;
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = grid.awaits_predecessors && kernels_can_wait() ? 1 : 0;
  config.gridDim = dim3(static_cast<uint32_t>(std::min<int64_t>(grid.blocks, 0x7FFFFFFF)));
  config.blockDim = dim3(static_cast<uint32_t>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  if (error != cudaSuccess) throw_launch_error(op, cudaGetErrorString(error));
}

NGP_DEVICE void await_predecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// --- Places -----------------------------------------------------------------------------------------
NGP_DEVICE uint32_t wave_size() { return 32; }
NGP_DEVICE uint32_t thread_index() { return threadIdx.x; }
NGP_DEVICE uint32_t block_threads() { return blockDim.x; }
NGP_DEVICE uint32_t block_index() { return blockIdx.x; }
NGP_DEVICE uint32_t grid_blocks() { return gridDim.x; }
inline constexpr bool kGridMustCover = false;
NGP_DEVICE int64_t next_item(int64_t item, int64_t stride, int64_t) { return item + stride; }

// --- Across the lanes of a wave ---------------------------------------------------------------------
NGP_DEVICE uint32_t shuffle(uint32_t value, uint32_t from_lane) {
  return __shfl_sync(0xFFFFFFFFu, value, static_cast<int>(from_lane));
}
NGP_DEVICE uint64_t ballot(bool yes) { return __ballot_sync(0xFFFFFFFFu, yes); }
NGP_DEVICE uint32_t count_ones(uint64_t bits) { return static_cast<uint32_t>(__popcll(bits)); }
NGP_DEVICE void sync_wave() { __syncwarp(); }

// --- Numbers ----------------------------------------------------------------------------------------
NGP_DEVICE double reciprocal(double value) {
  double guess;  // good to 2^-19; with it and its error e, guess (1 + e + e e) is off by e^3
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(guess) : "d"(value));
  const double error = __fma_rn(-value, guess, 1.0);
  return __fma_rn(guess, __fma_rn(error, error, error), guess);
}
NGP_DEVICE int64_t nearest_integer(double value) { return __double2ll_rn(value); }

NGP_DEVICE float half_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
NGP_DEVICE Float2 e4m3x2_to_floats(uint16_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  return {half_to_float(static_cast<uint16_t>(halves)), half_to_float(static_cast<uint16_t>(halves >> 16))};
#else
  return soft::e4m3x2_to_floats(pair);
#endif
}
NGP_DEVICE uint32_t floats_to_bf16x2(Float2 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.high), "f"(value.low));
  return pair;
#else
  return soft::floats_to_bf16x2(value);
#endif
}
NGP_DEVICE uint32_t floats_to_fp16x2(Float2 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.high), "f"(value.low));
  return pair;
#else
  return soft::floats_to_fp16x2(value);
#endif
}

NGP_DEVICE uint16_t floats_to_e4m3x2(Float2 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(value.high), "f"(value.low));
  return pair;
#else
  return soft::floats_to_e4m3x2(value);
#endif
}
NGP_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
NGP_DEVICE float saturated(float value) { return __saturatef(value); }

}  // namespace ngram_ple::gpu
