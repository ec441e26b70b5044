// HIP on the SIMT emulator: what csrc/gpu takes of hip/hip_runtime.h, so that its HIP side runs on a CPU. The
// build defines __HIPCC__ and includes this file first, as hipcc does with its own.
#pragma once

#include <cmath>
#include <cstdlib>
#include <functional>

#include "emulator/simt.h"

// --- Device -----------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define HIP_DYNAMIC_SHARED(type, name) \
  type* const name = reinterpret_cast<type*>(::ngram_ple::simt::shared_memory());

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct dim3 {
  uint32_t x, y, z;
  explicit dim3(uint32_t across, uint32_t lines = 1) : x(across), y(lines), z(1) {}
};

namespace ngram_ple::simt {

inline uint32_t hip_grid_width = 1;  // of the running kernel

inline dim3 hip_thread() { return dim3(thread_index(), 0); }
inline dim3 hip_block() { return dim3(block_index() % hip_grid_width, block_index() / hip_grid_width); }
inline dim3 hip_block_size() { return dim3(block_threads()); }
inline dim3 hip_grid_size() { return dim3(hip_grid_width, grid_blocks() / hip_grid_width); }

}  // namespace ngram_ple::simt

#define threadIdx (::ngram_ple::simt::hip_thread())
#define blockIdx (::ngram_ple::simt::hip_block())
#define blockDim (::ngram_ple::simt::hip_block_size())
#define gridDim (::ngram_ple::simt::hip_grid_size())
#define warpSize (static_cast<int>(::ngram_ple::simt::wave_size()))

inline int __shfl(int value, int from_lane) {
  return static_cast<int>(
      ngram_ple::simt::shuffle(static_cast<uint32_t>(value), static_cast<uint32_t>(from_lane)));
}
inline unsigned long long __ballot(int yes) { return ngram_ple::simt::ballot(yes != 0); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline long long __double2ll_rn(double value) { return std::llrint(value); }
#define __builtin_amdgcn_fence(order, scope) static_cast<void>(0)  // threads of a block run one at a time
#define __builtin_amdgcn_wave_barrier() ::ngram_ple::simt::sync_wave()

// --- Host -------------------------------------------------------------------------------------------
enum hipError_t { hipSuccess };
enum hipDeviceAttribute_t { hipDeviceAttributeWarpSize };
enum hipStreamCaptureStatus { hipStreamCaptureStatusNone };
enum hipStreamCaptureMode { hipStreamCaptureModeRelaxed };
using hipStream_t = void*;
inline constexpr unsigned hipHostMallocPortable = 1, hipHostMallocMapped = 2;

inline hipError_t hipGetLastError() { return hipSuccess; }
inline const char* hipGetErrorString(hipError_t) { return "no error"; }
inline hipError_t hipGetDevice(int* device) {
  *device = 0;
  return hipSuccess;
}
inline hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t, int) {
  *value = warpSize;
  return hipSuccess;
}
inline hipError_t hipStreamIsCapturing(hipStream_t, hipStreamCaptureStatus* status) {
  *status = hipStreamCaptureStatusNone;
  return hipSuccess;
}
inline hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
inline hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode*) { return hipSuccess; }
inline hipError_t hipHostMalloc(void** memory, size_t bytes, unsigned) {
  *memory = std::malloc(bytes);
  return hipSuccess;
}
inline hipError_t hipHostFree(void* memory) {
  std::free(memory);
  return hipSuccess;
}
template <class Kernel, class... Args>
void hipLaunchKernelGGL(Kernel kernel, dim3 grid, dim3 block, uint32_t shared_bytes, hipStream_t,
                        Args... args) {
  ngram_ple::simt::hip_grid_width = grid.x;
  ngram_ple::simt::run(int64_t{grid.x} * grid.y, static_cast<int>(block.x), shared_bytes,
                       [&] { kernel(args...); });
}
