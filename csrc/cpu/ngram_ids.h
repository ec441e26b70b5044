// N-gram ids on the CPU.
#pragma once

#include <cstdint>

#include "core/ngram_batch.h"
#include "cpu/hash_heads.h"

namespace ngram_ple::cpu {

// A batch with its heads' reciprocals: made once a call, shared by all threads.
class Hasher {
 public:
  explicit Hasher(const NgramBatch& batch) : batch_(batch), heads_(batch) {}

  const NgramBatch& batch() const { return batch_; }

  // Writes the ids of tokens [begin, end) to out[0 .. (end - begin) * H).
  void ids(int64_t begin, int64_t end, int64_t* out) const;

 private:
  NgramBatch batch_;
  HashHeads heads_;
};

}  // namespace ngram_ple::cpu
