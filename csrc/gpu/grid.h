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

// `blocks` blocks of `threads` threads, each block with so much shared memory; without blocks nothing
// happens.
struct Grid {
  int64_t blocks;
  int threads;
  uint32_t shared_bytes = 0;
  bool awaits_predecessors = false;  // whether the kernel begins with await_predecessors()
};

}  // namespace ngram_ple::gpu
