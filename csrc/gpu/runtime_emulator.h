// runtime.h on the SIMT emulator of tests/emulator, which runs kernels as C++ on the CPU.
#pragma once

#include <cmath>

#include "emulator/simt.h"

#define NGP_KERNEL(threads) static void
#define NGP_RESIDENT_KERNEL(threads, blocks) NGP_KERNEL(threads)
#define NGP_DEVICE inline

#include "gpu/grid.h"
#include "gpu/pairs.h"
#include "gpu/words.h"

namespace ngram_ple::gpu {

// --- Launch -----------------------------------------------------------------------------------------
inline uint32_t device_wave_size() { return simt::wave_size(); }

template <class... Params, class... Args>
void launch(const char*, void (*kernel)(Params...), const Grid& grid, Stream, Args... args) {
  if (grid.blocks <= 0) return;
  simt::run(grid.blocks, grid.threads, grid.shared_bytes, [&] { kernel(args...); });
}
NGP_DEVICE void await_predecessors() {}

// --- Places -----------------------------------------------------------------------------------------
NGP_DEVICE uint32_t wave_size() { return simt::wave_size(); }
NGP_DEVICE uint32_t thread_index() { return simt::thread_index(); }
NGP_DEVICE uint32_t block_threads() { return simt::block_threads(); }
NGP_DEVICE uint32_t block_index() { return simt::block_index(); }
NGP_DEVICE uint32_t grid_blocks() { return simt::grid_blocks(); }
inline constexpr bool kGridMustCover = false;
NGP_DEVICE int64_t next_item(int64_t item, int64_t stride, int64_t) { return item + stride; }

// --- Across the lanes of a wave ---------------------------------------------------------------------
NGP_DEVICE uint32_t shuffle(uint32_t value, uint32_t from_lane) { return simt::shuffle(value, from_lane); }
NGP_DEVICE uint64_t ballot(bool yes) { return simt::ballot(yes); }
NGP_DEVICE uint32_t count_ones(uint64_t bits) { return static_cast<uint32_t>(__builtin_popcountll(bits)); }
NGP_DEVICE void sync_wave() { simt::sync_wave(); }

// --- Memory -----------------------------------------------------------------------------------------
template <class T>
NGP_DEVICE T load_once(const uint8_t* from) {
  return simt::load<T>(from);
}
NGP_DEVICE uint32_t load_word(const uint8_t* from) { return simt::load<uint32_t>(from); }
template <class T>
NGP_DEVICE void store_once(uint8_t* to, T value) {
  simt::store(to, value);
}

NGP_DEVICE uint8_t* shared_memory() { return simt::shared_memory(); }
template <class T>
NGP_DEVICE T load_shared(const uint8_t* from) {
  return simt::load<T>(from);
}
template <class T>
NGP_DEVICE void store_shared(uint8_t* to, T value) {
  simt::store(to, value);
}

using SharedAddress = uint8_t*;
NGP_DEVICE SharedAddress shared_address(uint8_t* shared) { return shared; }
template <int kCount>
NGP_DEVICE void load_to_shared(SharedAddress to, uint32_t step, const uint8_t* const (&from)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    if (from[i] != nullptr) store_shared(to + step * i, load_once<Bytes16>(from[i]));
  }
}
NGP_DEVICE void await_loads() {}

NGP_DEVICE bool has_bulk_copy() { return simt::has_bulk_copy(); }
NGP_DEVICE void publish_to_bulk() {}
NGP_DEVICE void bulk_store(uint8_t* to, const uint8_t* shared, uint32_t bytes) {
  simt::bulk_copy(to, shared, bytes);
}

// --- Numbers ----------------------------------------------------------------------------------------
NGP_DEVICE double reciprocal(double value) { return 1.0 / value; }
NGP_DEVICE int64_t nearest_integer(double value) { return __builtin_llrint(value); }

NGP_DEVICE float half_to_float(uint16_t bits) { return fp16_to_float(bits); }
using soft::e4m3x2_to_floats;
using soft::floats_to_bf16x2;
using soft::floats_to_e4m3x2;
using soft::floats_to_fp16x2;
NGP_DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
NGP_DEVICE float saturated(float value) { return fminf(fmaxf(value, 0.0f), 1.0f); }

}  // namespace ngram_ple::gpu
