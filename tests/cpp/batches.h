// Ragged batches for the hashing tests: one description, held in exactly sized memory of either integer
// width.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "core/hash_plan.h"
#include "core/ngram_batch.h"
#include "memory.h"
#include "reference.h"

namespace testing_batches {

inline testing_memory::ExactBytes integers(const std::vector<int64_t>& values, bool is_int64) {
  testing_memory::ExactBytes bytes(values.size() * (is_int64 ? 8 : 4));
  for (size_t i = 0; i < values.size(); ++i) {
    const int32_t narrow = static_cast<int32_t>(values[i]);
    std::memcpy(bytes.data() + i * (is_int64 ? 8 : 4),
                is_int64 ? static_cast<const void*>(&values[i]) : &narrow, is_int64 ? 8 : 4);
  }
  return bytes;
}

// The arguments of a hashing kernel and the memory they point to.
class HeldBatch {
 public:
  // Bits 0, 1, 2 of `widths` make input_ids, query_start_loc, ngram_context int64. Context rows lie `stride`
  // elements apart (N - 1 when 0); the last row ends the memory.
  explicit HeldBatch(const reference::Batch& batch, int widths = 7, int64_t stride = 0)
      : multipliers_(batch.multipliers),
        sizes_(batch.sizes),
        offsets_(batch.offsets),
        ids_(integers(batch.input_ids, widths & 1)),
        bounds_(integers(batch.query_start_loc, widths & 2)),
        contexts_(integers(flatten(batch, stride), widths & 4)) {
    const int64_t columns = static_cast<int64_t>(batch.multipliers.size()) - 1;
    view = {{ids_.data(), (widths & 1) != 0},
            {bounds_.data(), (widths & 2) != 0},
            {contexts_.data(), (widths & 4) != 0},
            stride == 0 ? columns : stride,
            static_cast<int64_t>(batch.input_ids.size()),
            static_cast<int64_t>(batch.query_start_loc.size()) - 1,
            batch.eos,
            static_cast<int32_t>(batch.multipliers.size()),
            batch.heads_per_ngram,
            multipliers_.data(),
            sizes_.data(),
            offsets_.data()};
  }
  HeldBatch(const HeldBatch&) = delete;

  ngram_ple::NgramBatch view;

 private:
  static std::vector<int64_t> flatten(const reference::Batch& batch, int64_t stride) {
    std::vector<int64_t> flat;
    for (size_t r = 0; r < batch.contexts.size(); ++r) {
      flat.insert(flat.end(), batch.contexts[r].begin(), batch.contexts[r].end());
      const size_t gap = stride == 0 ? 0 : static_cast<size_t>(stride) - batch.contexts[r].size();
      if (r + 1 < batch.contexts.size()) flat.insert(flat.end(), gap, -12345);
    }
    return flat;
  }

  std::vector<int64_t> multipliers_, sizes_, offsets_;
  testing_memory::ExactBytes ids_, bounds_, contexts_;
};

// A plan of small primes, so that tables stay small.
inline reference::Batch with_plan(int ngram_size, int heads_per_ngram, int64_t base = 11) {
  const ngram_ple::HashPlan plan =
      ngram_ple::make_hash_plan({ngram_size, heads_per_ngram, 100, base, 1, 5, 0});
  reference::Batch batch;
  batch.multipliers = plan.multipliers;
  batch.sizes = plan.head_sizes;
  batch.offsets = plan.head_offsets;
  batch.heads_per_ngram = heads_per_ngram;
  return batch;
}

// Random requests, some empty, EOS frequent; `padding` tokens past the last boundary.
inline reference::Batch random_batch(std::mt19937_64& random, int ngram_size, int heads_per_ngram,
                                     int requests, int longest, int padding, int64_t token_limit = 8) {
  reference::Batch batch = with_plan(ngram_size, heads_per_ngram);
  batch.eos = 3;
  const auto token = [&] { return static_cast<int64_t>(random() % static_cast<uint64_t>(token_limit)); };
  batch.query_start_loc.push_back(0);
  for (int r = 0; r < requests; ++r) {
    const int64_t length = static_cast<int64_t>(random() % static_cast<uint64_t>(longest + 1));
    batch.query_start_loc.push_back(batch.query_start_loc.back() + length);
    std::vector<int64_t> context;
    for (int i = 0; i < ngram_size - 1; ++i) context.push_back(token());
    batch.contexts.push_back(context);
  }
  for (int64_t t = 0; t < batch.query_start_loc.back() + padding; ++t) batch.input_ids.push_back(token());
  return batch;
}

}  // namespace testing_batches
