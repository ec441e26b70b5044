// Row numbers that lie in memory.
#pragma once

#include "gpu/integers.cuh"

namespace ngram_ple::gpu {

struct ListedIds {
  static constexpr int kResidentBlocks = 8;
  IntArray ids;
  NGP_DEVICE int64_t operator()(int64_t row) const { return load_pending(ids, row).value(); }
};

}  // namespace ngram_ple::gpu
