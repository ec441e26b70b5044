// runtime.h on HIP: plain accesses throughout. Old and partial ROCm installations have no headers for bf16
// and fp8, so those stay raw bits.
#pragma once

#include <hip/hip_runtime.h>

#define NGP_KERNEL(threads) static __global__ void __launch_bounds__(threads)
#define NGP_DEVICE __device__ __forceinline__

#include "gpu/grid.h"
#include "gpu/pairs.h"
#include "gpu/words.h"

namespace ngram_ple::gpu {

// --- Launch -----------------------------------------------------------------------------------------
template <class... Params, class... Args>
void launch(const char* op, void (*kernel)(Params...), const Grid& grid, Stream stream, Args... args) {
  if (grid.blocks <= 0) return;
  hipLaunchKernelGGL(kernel, dim3(static_cast<uint32_t>(grid.blocks)),
                     dim3(static_cast<uint32_t>(grid.threads)), grid.shared_bytes,
                     static_cast<hipStream_t>(stream), args...);
  const hipError_t error = hipGetLastError();
  if (error != hipSuccess) throw_launch_error(op, hipGetErrorString(error));
}
NGP_DEVICE void await_predecessors() {}

// --- Places -----------------------------------------------------------------------------------------
// 32 or 64 lanes: known to the device's compiler alone, so no host code may depend on it.
NGP_DEVICE uint32_t wave_size() { return static_cast<uint32_t>(warpSize); }
NGP_DEVICE uint32_t thread_index() { return threadIdx.x; }
NGP_DEVICE uint32_t block_threads() { return blockDim.x; }
NGP_DEVICE uint32_t block_index() { return blockIdx.x; }
NGP_DEVICE uint32_t grid_blocks() { return gridDim.x; }

// --- Across the lanes of a wave ---------------------------------------------------------------------
NGP_DEVICE uint32_t shuffle(uint32_t value, uint32_t from_lane) {
  return static_cast<uint32_t>(__shfl(static_cast<int>(value), static_cast<int>(from_lane)));
}
NGP_DEVICE uint64_t ballot(bool yes) { return __ballot(yes); }
NGP_DEVICE uint32_t count_ones(uint64_t bits) { return static_cast<uint32_t>(__popcll(bits)); }
NGP_DEVICE void sync_wave() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
  __builtin_amdgcn_wave_barrier();
}

// --- Memory -----------------------------------------------------------------------------------------
template <class T>
NGP_DEVICE T load_once(const uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}
NGP_DEVICE uint32_t load_word(const uint8_t* from) { return *reinterpret_cast<const uint32_t*>(from); }
template <class T>
NGP_DEVICE void store_once(uint8_t* to, T value) {
  *reinterpret_cast<T*>(to) = value;
}

NGP_DEVICE uint8_t* shared_memory() {
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<uint8_t*>(shared_words);
}
template <class T>
NGP_DEVICE T load_shared(const uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}
template <class T>
NGP_DEVICE void store_shared(uint8_t* to, T value) {
  *reinterpret_cast<T*>(to) = value;
}

using SharedAddress = uint8_t*;
NGP_DEVICE SharedAddress shared_address(uint8_t* shared) { return shared; }
NGP_DEVICE void load_to_shared(SharedAddress to, const uint8_t* from) {
  store_shared(to, load_once<Bytes16>(from));
}
NGP_DEVICE void await_loads() {}

NGP_DEVICE bool has_bulk_copy() { return false; }
NGP_DEVICE void publish_to_bulk() {}
NGP_DEVICE void bulk_store(uint8_t*, const uint8_t*, uint32_t) {}

// --- Numbers ----------------------------------------------------------------------------------------
NGP_DEVICE double reciprocal(double value) { return 1.0 / value; }
NGP_DEVICE int64_t nearest_integer(double value) { return __double2ll_rn(value); }

NGP_DEVICE float half_to_float(uint16_t bits) {
#if defined(__HIP_DEVICE_COMPILE__)
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
#else
  return fp16_to_float(bits);
#endif
}
using soft::e4m3x2_to_floats;
using soft::floats_to_bf16x2;
using soft::floats_to_fp16x2;

}  // namespace ngram_ple::gpu
