// How many blocks and threads a kernel is started with: a part of runtime.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "gpu/launch.h"

namespace ngram_ple::gpu {

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

}  // namespace ngram_ple::gpu
