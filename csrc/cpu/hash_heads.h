// From a mixed hash to the ids of its heads: one floor modulo a head.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ngram_batch.h"

namespace ngram_ple::cpu {

// The divisors, reciprocals and offsets of all heads, each its own array so that vector lanes load side by
// side.
class HashHeads {
 public:
  explicit HashHeads(const NgramBatch& batch);

  // out[k] = floor_mod(mixed, size[first + k]) + offset[first + k] for k in 0 .. count-1.
  void ids(int64_t mixed, int32_t first, int32_t count, int64_t* out) const;

 private:
  void ids_avx2(int64_t mixed, int32_t first, int32_t count, int64_t* out) const;

  std::vector<int64_t> divisors_;
  std::vector<uint64_t> reciprocals_;
  const int64_t* offsets_;
  bool use_avx2_;  // the processor has it and every divisor is below 2^31
};

}  // namespace ngram_ple::cpu
