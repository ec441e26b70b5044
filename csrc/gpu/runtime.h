// The only file that knows the vendors: CUDA, HIP, and the SIMT emulator of tests/emulator as a third.
// Kernels are written against the words below. All lanes of a wave call shuffle(), ballot() and sync_wave()
// together.
#pragma once

#if defined(NGRAM_PLE_EMULATOR)
#include "emulator/simt.h"
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif

#include <cstdint>
#include <stdexcept>
#include <string>

#include "core/numeric.h"
#include "core/portability.h"
#include "gpu/launch.h"

#if defined(NGRAM_PLE_EMULATOR)
#define NGP_KERNEL(threads) static void
#define NGP_DEVICE inline
#else
#define NGP_KERNEL(threads) static __global__ void __launch_bounds__(threads)
#define NGP_DEVICE __device__ __forceinline__
#endif

namespace ngram_ple::gpu {

// --- Launch -----------------------------------------------------------------------------------------
[[noreturn]] inline void throw_launch_error(const char* op, const char* what) {
  throw std::runtime_error(std::string(op) + ": the kernel launch failed: " + what);
}

// Blocks for so many waves, whatever the device's wave size; kernels stride over what is left.
inline constexpr int kSmallestWave = 32;
inline int64_t blocks_for_waves(int64_t waves, int threads) {
  const int64_t waves_per_block = threads / kSmallestWave;
  constexpr int64_t kMostBlocks = 0x7FFFFFFF;
  const int64_t blocks = (waves + waves_per_block - 1) / waves_per_block;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

// `blocks` blocks of `threads` threads, each block with so much shared memory; without blocks nothing
// happens.
struct Grid {
  int64_t blocks;
  int threads;
  uint32_t shared_bytes = 0;
  bool awaits_predecessors = false;  // whether the kernel begins with await_predecessors()
};

#if !defined(NGRAM_PLE_EMULATOR) && !defined(__HIPCC__)
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
#endif

template <class... Params, class... Args>
void launch(const char* op, void (*kernel)(Params...), const Grid& grid, Stream stream, Args... args) {
  if (grid.blocks <= 0) return;
#if defined(NGRAM_PLE_EMULATOR)
  (void)op, (void)stream;
  simt::run(grid.blocks, grid.threads, grid.shared_bytes, [&] { kernel(args...); });
#elif defined(__HIPCC__)
  hipLaunchKernelGGL(kernel, dim3(static_cast<uint32_t>(grid.blocks)),
                     dim3(static_cast<uint32_t>(grid.threads)), grid.shared_bytes,
                     static_cast<hipStream_t>(stream), args...);
  const hipError_t error = hipGetLastError();
  if (error != hipSuccess) throw_launch_error(op, hipGetErrorString(error));
#else
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = grid.awaits_predecessors && kernels_can_wait() ? 1 : 0;
  config.gridDim = dim3(static_cast<uint32_t>(grid.blocks));
  config.blockDim = dim3(static_cast<uint32_t>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  if (error != cudaSuccess) throw_launch_error(op, cudaGetErrorString(error));
#endif
}

// --- Places -----------------------------------------------------------------------------------------
#if defined(NGRAM_PLE_EMULATOR)
NGP_DEVICE uint32_t wave_size() { return simt::wave_size(); }
NGP_DEVICE uint32_t thread_index() { return simt::thread_index(); }
NGP_DEVICE uint32_t block_threads() { return simt::block_threads(); }
NGP_DEVICE uint32_t block_index() { return simt::block_index(); }
NGP_DEVICE uint32_t grid_blocks() { return simt::grid_blocks(); }
#else
// 32 on NVIDIA, 32 or 64 on AMD: known to the device's compiler alone, so no host code may depend on it.
NGP_DEVICE uint32_t wave_size() {
#if defined(__HIPCC__)
  return static_cast<uint32_t>(warpSize);
#else
  return 32;
#endif
}
NGP_DEVICE uint32_t thread_index() { return threadIdx.x; }
NGP_DEVICE uint32_t block_threads() { return blockDim.x; }
NGP_DEVICE uint32_t block_index() { return blockIdx.x; }
NGP_DEVICE uint32_t grid_blocks() { return gridDim.x; }
#endif
NGP_DEVICE uint32_t lane_index() { return thread_index() % wave_size(); }
NGP_DEVICE int64_t wave_index() {
  return static_cast<int64_t>(block_index()) * (block_threads() / wave_size()) + thread_index() / wave_size();
}
NGP_DEVICE int64_t num_waves() {
  return static_cast<int64_t>(grid_blocks()) * (block_threads() / wave_size());
}

// --- Across the lanes of a wave ---------------------------------------------------------------------
NGP_DEVICE uint32_t shuffle(uint32_t value, uint32_t from_lane) {
#if defined(NGRAM_PLE_EMULATOR)
  return simt::shuffle(value, from_lane);
#elif defined(__HIPCC__)
  return static_cast<uint32_t>(__shfl(static_cast<int>(value), static_cast<int>(from_lane)));
#else
  return __shfl_sync(0xFFFFFFFFu, value, static_cast<int>(from_lane));
#endif
}
NGP_DEVICE int64_t shuffle(int64_t value, uint32_t from_lane) {
  const uint64_t bits = static_cast<uint64_t>(value);
  const uint64_t low = shuffle(static_cast<uint32_t>(bits), from_lane);
  const uint64_t high = shuffle(static_cast<uint32_t>(bits >> 32), from_lane);
  return static_cast<int64_t>(high << 32 | low);
}
// Bit l: whether lane l said yes.
NGP_DEVICE uint64_t ballot(bool yes) {
#if defined(NGRAM_PLE_EMULATOR)
  return simt::ballot(yes);
#elif defined(__HIPCC__)
  return __ballot(yes);
#else
  return __ballot_sync(0xFFFFFFFFu, yes);
#endif
}
NGP_DEVICE uint32_t count_ones(uint64_t bits) {
#if defined(NGRAM_PLE_EMULATOR)
  return static_cast<uint32_t>(__builtin_popcountll(bits));
#else
  return static_cast<uint32_t>(__popcll(bits));
#endif
}

// What lanes wrote to shared memory before, all lanes of the wave see after.
NGP_DEVICE void sync_wave() {
#if defined(NGRAM_PLE_EMULATOR)
  simt::sync_wave();
#elif defined(__HIPCC__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

// A kernel launched with Grid::awaits_predecessors may start while the one before it ends: before anything
// else it waits here, every lane, until what that one wrote is there.
NGP_DEVICE void await_predecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// --- Memory -----------------------------------------------------------------------------------------
template <int kWords>
struct alignas(4 * kWords) Words {
  uint32_t word[kWords];
};
using Bytes16 = Words<4>;
using Bytes8 = Words<2>;

// What a row or an output is accessed in: Bytes16, Bytes8, uint32_t, uint16_t or uint8_t. Rows are read once
// and keep no place in the first cache; results are written once and leave the second cache first.
template <class T>
NGP_DEVICE T load_once(const uint8_t* from) {
#if defined(NGRAM_PLE_EMULATOR)
  return simt::load<T>(from);
#elif defined(__HIPCC__)
  return *reinterpret_cast<const T*>(from);
#else
  T value;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
                 : "l"(from));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.word[0]), "=r"(value.word[1])
                 : "l"(from));
  } else if constexpr (sizeof(T) == 4) {
    const uint32_t word = __ldg(reinterpret_cast<const uint32_t*>(from));
    memcpy(&value, &word, sizeof value);
  } else {
    value = __ldg(reinterpret_cast<const T*>(from));
  }
  return value;
#endif
}

// A 4-byte word of an array that every lane may read again.
NGP_DEVICE uint32_t load_word(const uint8_t* from) {
#if defined(NGRAM_PLE_EMULATOR)
  return simt::load<uint32_t>(from);
#elif defined(__HIPCC__)
  return *reinterpret_cast<const uint32_t*>(from);
#else
  return __ldg(reinterpret_cast<const uint32_t*>(from));
#endif
}

template <class T>
NGP_DEVICE void store_once(uint8_t* to, T value) {
#if defined(NGRAM_PLE_EMULATOR)
  simt::store(to, value);
#elif defined(__HIPCC__)
  *reinterpret_cast<T*>(to) = value;
#else
  if constexpr (sizeof(T) == 16) {
    __stcs(reinterpret_cast<uint4*>(to),
           make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]));
  } else if constexpr (sizeof(T) == 8) {
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(value.word[0], value.word[1]));
  } else {
    __stcs(reinterpret_cast<T*>(to), value);
  }
#endif
}

// The block's shared memory, aligned to 16 bytes.
NGP_DEVICE uint8_t* shared_memory() {
#if defined(NGRAM_PLE_EMULATOR)
  return simt::shared_memory();
#else
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<uint8_t*>(shared_words);
#endif
}
template <class T>
NGP_DEVICE T load_shared(const uint8_t* from) {
#if defined(NGRAM_PLE_EMULATOR)
  return simt::load<T>(from);
#else
  return *reinterpret_cast<const T*>(from);
#endif
}
template <class T>
NGP_DEVICE void store_shared(uint8_t* to, T value) {
#if defined(NGRAM_PLE_EMULATOR)
  simt::store(to, value);
#else
  *reinterpret_cast<T*>(to) = value;
#endif
}

// A place in shared memory as load_to_shared() takes it, worked out once for a loop.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
using SharedAddress = uint32_t;
NGP_DEVICE SharedAddress shared_address(const uint8_t* shared) {
  uint32_t address;
  asm volatile("mov.u32 %0, %1;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))));
  return address;
}
#else
using SharedAddress = uint8_t*;
NGP_DEVICE SharedAddress shared_address(uint8_t* shared) { return shared; }
#endif

// 16 bytes from global to shared memory, under way until await_loads(), and no register waits for them. Both
// addresses are multiples of 16.
NGP_DEVICE void load_to_shared(SharedAddress to, const uint8_t* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
  store_shared(to, load_once<Bytes16>(from));
#endif
}
// By every lane; sync_wave() follows.
NGP_DEVICE void await_loads() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// --- Numbers ----------------------------------------------------------------------------------------
// 1 / value for a normal value, within 2^-51.9 of it.
NGP_DEVICE double reciprocal(double value) {
#if defined(__CUDA_ARCH__)
  double guess;  // good to 2^-19; with it and its error e, guess (1 + e + e e) is off by e^3
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(guess) : "d"(value));
  const double error = __fma_rn(-value, guess, 1.0);
  return __fma_rn(guess, __fma_rn(error, error, error), guess);
#else
  return 1.0 / value;
#endif
}
NGP_DEVICE int64_t nearest_integer(double value) {
#if defined(NGRAM_PLE_EMULATOR)
  return __builtin_llrint(value);
#else
  return __double2ll_rn(value);
#endif
}

// --- Numbers: two at a time, the lower half first ---------------------------------------------------
struct Float2 {
  float low, high;
};

NGP_DEVICE float half_to_float(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#elif defined(__HIP_DEVICE_COMPILE__)
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
#else
  return fp16_to_float(bits);
#endif
}
NGP_DEVICE Float2 fp16x2_to_floats(uint32_t pair) {
  return {half_to_float(static_cast<uint16_t>(pair)), half_to_float(static_cast<uint16_t>(pair >> 16))};
}
NGP_DEVICE Float2 bf16x2_to_floats(uint32_t pair) {
  return {float_from_bits(pair << 16), float_from_bits(pair & 0xFFFF0000u)};
}
NGP_DEVICE Float2 e4m3x2_to_floats(uint16_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  return fp16x2_to_floats(halves);
#else
  return {e4m3_to_float(static_cast<uint8_t>(pair)), e4m3_to_float(static_cast<uint8_t>(pair >> 8))};
#endif
}
// Both round to nearest even, subnormals kept.
NGP_DEVICE uint32_t floats_to_bf16x2(Float2 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.high), "f"(value.low));
  return pair;
#else
  return float_to_bf16(value.low) | static_cast<uint32_t>(float_to_bf16(value.high)) << 16;
#endif
}
NGP_DEVICE uint32_t floats_to_fp16x2(Float2 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.high), "f"(value.low));
  return pair;
#else
  return float_to_fp16(value.low) | static_cast<uint32_t>(float_to_fp16(value.high)) << 16;
#endif
}

}  // namespace ngram_ple::gpu
