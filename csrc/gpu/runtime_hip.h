// runtime.h on HIP. Old and partial ROCm installations have no headers for bf16 and fp8, so those stay raw
// bits.
#pragma once

#include <hip/hip_runtime.h>

#define NGP_KERNEL(threads) static __global__ void __launch_bounds__(threads)
#define NGP_RESIDENT_KERNEL(threads, blocks) NGP_KERNEL(threads)  // HIP counts the waves of a SIMD there
#define NGP_DEVICE __device__ __forceinline__

#include <algorithm>
#include <type_traits>

#include "gpu/grid.h"
#include "gpu/pairs.h"
#include "gpu/words.h"

namespace ngram_ple::gpu {

// --- Launch -----------------------------------------------------------------------------------------
// Items past the waves of a grid would be left out without a word: a failure to tell the wave size ends the
// call.
inline uint32_t device_wave_size() {
  int device = 0, lanes = 0;
  hipError_t error = hipGetDevice(&device);
  if (error == hipSuccess) error = hipDeviceGetAttribute(&lanes, hipDeviceAttributeWarpSize, device);
  if (error != hipSuccess) throw_launch_error("device_wave_size", hipGetErrorString(error));
  return static_cast<uint32_t>(lanes);
}

template <class... Params, class... Args>
void launch(const char* op, void (*kernel)(Params...), const Grid& grid, Stream stream, Args... args) {
  if (grid.blocks <= 0) return;
  // A dimension holds fewer than 2^32 threads. Blocks past grid.blocks, in the last line, find no item.
  constexpr int64_t kMostAcross = 1 << 22, kMostLines = 1 << 10;
  const int64_t across = std::min(grid.blocks, kMostAcross), lines = (grid.blocks + across - 1) / across;
  if (lines > kMostLines) throw_launch_error(op, "more blocks than are counted in 32 bits");
  hipLaunchKernelGGL(kernel, dim3(static_cast<uint32_t>(across), static_cast<uint32_t>(lines)),
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
NGP_DEVICE uint32_t block_index() { return blockIdx.y * gridDim.x + blockIdx.x; }
NGP_DEVICE uint32_t grid_blocks() { return gridDim.x * gridDim.y; }
// No loop: around it the compiler would keep every argument in scalar registers, of which there are too few.
inline constexpr bool kGridMustCover = true;
NGP_DEVICE int64_t next_item(int64_t, int64_t, int64_t end) { return end; }

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

// --- Global memory ----------------------------------------------------------------------------------
// Said to be global where the compiler cannot know: a flat access counts as one of shared memory too.
#if defined(__HIP_DEVICE_COMPILE__)
#define NGP_GLOBAL __attribute__((address_space(1)))
#else
#define NGP_GLOBAL
#endif
template <class T>
NGP_DEVICE T load_once(const uint8_t* from) {
  const auto* global = (const NGP_GLOBAL T*)from;
  if constexpr (std::is_integral_v<T>) {
    return *global;
  } else {
    T value;
#pragma unroll
    for (size_t i = 0; i < sizeof(T) / 4; ++i) value.word[i] = global->word[i];
    return value;
  }
}
NGP_DEVICE uint32_t load_word(const uint8_t* from) { return load_once<uint32_t>(from); }
template <class T>
NGP_DEVICE void store_once(uint8_t* to, T value) {
  auto* global = (NGP_GLOBAL T*)to;
  if constexpr (std::is_integral_v<T>) {
    *global = value;
  } else {
#pragma unroll
    for (size_t i = 0; i < sizeof(T) / 4; ++i) global->word[i] = value.word[i];
  }
}

// --- Shared memory ----------------------------------------------------------------------------------

NGP_DEVICE uint8_t* shared_memory() {
  HIP_DYNAMIC_SHARED(uint4, shared_words)
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
// By way of registers, every load under way before the first is waited for.
template <int kCount>
NGP_DEVICE void load_to_shared(SharedAddress to, uint32_t step, const uint8_t* const (&from)[kCount]) {
  Bytes16 held[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (from[i] != nullptr) held[i] = load_once<Bytes16>(from[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (from[i] != nullptr) store_shared(to + step * i, held[i]);
  }
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
using soft::floats_to_e4m3x2;
using soft::floats_to_fp16x2;
NGP_DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
NGP_DEVICE float saturated(float value) { return fminf(fmaxf(value, 0.0f), 1.0f); }

}  // namespace ngram_ple::gpu
