// What kernels are written against, the same words for CUDA, for HIP and, as a third vendor, for the SIMT
// emulator of tests/emulator. A vendor's file says what they mean there: no kernel asks which it is.
//
//   launch(op, kernel, grid, stream, args...)  device_wave_size()
//       On the host; the wave size is the current device's.
//   NGP_KERNEL(threads)  NGP_RESIDENT_KERNEL(threads, blocks)
//       In front of a kernel: the threads of its blocks, and how many blocks a multiprocessor should be able
//       to hold (0: as many as come out): the compiler spends the registers that this leaves.
//   wave_size()  thread_index()  block_threads()  block_index()  grid_blocks()
//   next_item(item, stride, end)
//       The item that a wave takes after `item`, of a grid of blocks_for_waves(): a stride further, or `end`
//       where such a grid must cover them all (kGridMustCover).
//   shuffle(value, from_lane)  ballot(yes)  count_ones(bits)  sync_wave()
//       All lanes of a wave call them together. Bit l of a ballot: whether lane l said yes. What lanes wrote
//       to shared memory before sync_wave(), all lanes of the wave see after.
//   await_predecessors()
//       A kernel launched with Grid::awaits_predecessors may start while the one before it ends: before
//       anything else it waits here, every lane, until what that one wrote is there.
//   load_once<T>(from)  store_once(to, value)  load_word(from)
//       A row or an output in Bytes16, Bytes8, uint32_t, uint16_t or uint8_t. Rows are read once and keep no
//       place in the first cache; results are written once and leave the second cache first. load_word: 4
//       bytes of an array that every lane may read again.
//   shared_memory()  load_shared<T>(from)  store_shared(to, value)
//       The block's shared memory, aligned to 16 bytes.
//   SharedAddress shared_address(shared)  load_to_shared(to, step, from[])  await_loads()
//       16 bytes from each address that is not null, to shared memory at to, to + step, and so on; all
//       multiples of 16. Under way until await_loads(), which every lane calls and sync_wave() follows. A
//       SharedAddress is worked out once for a loop.
//   has_bulk_copy()  publish_to_bulk()  bulk_store(to, shared, bytes)
//       Copies from shared to global memory by a machine of their own, one instruction a wave; addresses and
//       sizes are multiples of 16. Every lane that wrote the shared memory publishes it, sync_wave() follows,
//       one lane stores; when that returns, the shared memory may be written again. Where the device has no
//       such machine, has_bulk_copy() is false and the others do nothing.
//   reciprocal(value)  nearest_integer(value)
//       1 / value for a normal value, within 2^-51.9 of it.
//   half_to_float(bits)  e4m3x2_to_floats(pair)  floats_to_bf16x2(value)  floats_to_fp16x2(value)
//       The lower half first; to nearest even, subnormals kept.
//   floats_to_e4m3x2(value)
//       The same to core/numeric.h's codes, but that NaN may become any.
//   fused(a, b, c)  saturated(value)
//       a b + c, rounded once. Inside [0, 1], NaN as 0: free of charge after a product or fused().
#pragma once

#if defined(NGRAM_PLE_EMULATOR)
#include "gpu/runtime_emulator.h"
#elif defined(__HIPCC__)
#include "gpu/runtime_hip.h"
#else
#include "gpu/runtime_cuda.h"
#endif

namespace ngram_ple::gpu {

// Blocks of `threads` threads with so many waves.
inline int64_t blocks_for_waves(int64_t waves, int threads) {
  const int64_t waves_per_block = threads / static_cast<int>(device_wave_size());
  return (waves + waves_per_block - 1) / waves_per_block;
}

NGP_DEVICE uint32_t lane_index() { return thread_index() % wave_size(); }
NGP_DEVICE int64_t wave_index() {
  return static_cast<int64_t>(block_index()) * (block_threads() / wave_size()) + thread_index() / wave_size();
}
NGP_DEVICE int64_t num_waves() {
  return static_cast<int64_t>(grid_blocks()) * (block_threads() / wave_size());
}

NGP_DEVICE int64_t shuffle(int64_t value, uint32_t from_lane) {
  const uint64_t bits = static_cast<uint64_t>(value);
  const uint64_t low = shuffle(static_cast<uint32_t>(bits), from_lane);
  const uint64_t high = shuffle(static_cast<uint32_t>(bits >> 32), from_lane);
  return static_cast<int64_t>(high << 32 | low);
}

NGP_DEVICE Float2 fp16x2_to_floats(uint32_t pair) {
  return {half_to_float(static_cast<uint16_t>(pair)), half_to_float(static_cast<uint16_t>(pair >> 16))};
}
NGP_DEVICE Float2 bf16x2_to_floats(uint32_t pair) {
  return {float_from_bits(pair << 16), float_from_bits(pair & 0xFFFF0000u)};
}

}  // namespace ngram_ple::gpu
