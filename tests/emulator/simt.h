// A small SIMT machine on the CPU, the third "vendor" of csrc/gpu/runtime.h: every thread of a block is a
// fiber, run in shuffled order, so that the kernels run unmodified and under the sanitizers. Blocks run one
// after another.
//
// It is stricter than a GPU: all lanes of a wave must meet in the same collective call, and every access must
// be aligned to its width. A kernel that breaks a rule aborts with a sentence.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>

namespace ngram_ple::simt {

// --- Settings, for the tests ------------------------------------------------------------------------
void set_wave_size(uint32_t lanes);  // 32 (the default) or 64
void set_order(uint64_t seed);       // of the threads
void set_bulk_copy(bool has);        // whether the machine copies in bulk (the default) or only by lanes

// --- What runtime.h asks for ------------------------------------------------------------------------
void run(int64_t blocks, int threads, uint32_t shared_bytes, const std::function<void()>& kernel);

uint32_t wave_size();
uint32_t thread_index();
uint32_t block_threads();
uint32_t block_index();
uint32_t grid_blocks();

uint32_t shuffle(uint32_t value, uint32_t from_lane);
uint64_t ballot(bool yes);
void sync_wave();
void sync_block();
uint8_t* shared_memory();  // of the block, exactly as large as asked for
bool has_bulk_copy();
void bulk_copy(uint8_t* to, const uint8_t* from, uint32_t bytes);

[[noreturn]] void fail(const char* sentence);

template <class T>
void check_alignment(const uint8_t* at) {
  if (reinterpret_cast<uintptr_t>(at) % alignof(T) != 0) fail("a memory access is not aligned to its width");
}

template <class T>
T load(const uint8_t* from) {
  check_alignment<T>(from);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(uint8_t* to, T value) {
  check_alignment<T>(to);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace ngram_ple::simt
