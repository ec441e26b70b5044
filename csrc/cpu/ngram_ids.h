// N-gram ids on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fast_mod.h"
#include "core/ngram_batch.h"

namespace ngram_ple::cpu {

// A batch with its heads' reciprocals: made once a call, shared by all threads.
class Hasher {
 public:
  explicit Hasher(const NgramBatch& batch);

  const NgramBatch& batch() const { return batch_; }

  // Writes the ids of tokens [begin, end) to out[0 .. (end - begin) * H).
  void ids(int64_t begin, int64_t end, int64_t* out) const;

 private:
  NgramBatch batch_;
  std::vector<FloorMod> moduli_;  // [H]
};

}  // namespace ngram_ple::cpu
