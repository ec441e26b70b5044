// Random ragged batches on the host and the device, and the row numbers that they must give.
#pragma once

#include <memory>
#include <random>

#include "core/ngram_hash.h"
#include "cpp/gpu/device.h"

namespace ngram_ple::test {

using Random = std::mt19937_64;

inline int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// An integer array of either width on the host.
struct HostInts {
  bool is_int64 = true;
  std::vector<int64_t> values;

  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> raw;
    for (int64_t value : values) {
      const auto* from = reinterpret_cast<const uint8_t*>(&value);  // little endian: the low bytes come first
      raw.insert(raw.end(), from, from + (is_int64 ? 8 : 4));
    }
    return raw;
  }
};

struct BatchCase {
  int64_t tokens = 0;
  int64_t requests = 1;
  int32_t ngram_size = 3, heads_per_ngram = 8;
  bool int64_ids = true, int64_starts = true, int64_context = true;
  int64_t padding = 0;         // of the tokens, so many past the last boundary
  int64_t vocabulary = 6;      // small: EOS (0) is met often
  int64_t largest_head = 200;  // rows a head
  int64_t spare_columns = 0;   // between rows of the context
};

struct Batch {
  HostInts ids, starts, context;
  std::vector<int64_t> multipliers, sizes, offsets;
  NgramBatch host{};  // its pointers are left to view()
  int64_t rows = 0;   // of the table

  // The same batch with the arrays given.
  NgramBatch view(const void* i, const void* s, const void* c, const int64_t* m, const int64_t* z,
                  const int64_t* o) const {
    NgramBatch batch = host;
    batch.input_ids = {i, ids.is_int64};
    batch.query_start_loc = {s, starts.is_int64};
    batch.ngram_context = {c, context.is_int64};
    batch.layer_multipliers = m;
    batch.ngram_heads_vocab_sizes = z;
    batch.ngram_heads_offsets = o;
    return batch;
  }
};

inline Batch make_batch(const BatchCase& what, Random& random) {
  Batch batch;
  const auto token = [&] { return pick(random, 0, what.vocabulary - 1); };
  batch.ids.is_int64 = what.int64_ids;
  for (int64_t t = 0; t < what.tokens; ++t) batch.ids.values.push_back(token());

  batch.starts.is_int64 = what.int64_starts;
  for (int64_t r = 1; r < what.requests; ++r) {
    batch.starts.values.push_back(pick(random, 0, what.tokens - what.padding));
  }
  batch.starts.values.push_back(0);
  batch.starts.values.push_back(what.tokens - what.padding);
  if (what.requests == 0) batch.starts.values = {0};
  std::sort(batch.starts.values.begin(), batch.starts.values.end());

  batch.context.is_int64 = what.int64_context;
  const int64_t columns = what.ngram_size - 1, stride = columns + what.spare_columns;
  for (int64_t i = 0; i < what.requests * stride - (what.requests > 0 ? what.spare_columns : 0); ++i) {
    batch.context.values.push_back(token());
  }
  for (int32_t i = 0; i < what.ngram_size; ++i) {
    batch.multipliers.push_back(static_cast<int64_t>(random() | 1));
  }
  for (int64_t h = 0; h < columns * what.heads_per_ngram; ++h) {
    batch.sizes.push_back(pick(random, 1, what.largest_head));
    batch.offsets.push_back(batch.rows);
    batch.rows += batch.sizes.back();
  }
  batch.host.context_stride = stride;
  batch.host.num_tokens = what.tokens;
  batch.host.num_requests = what.requests;
  batch.host.eos_token_id = 0;
  batch.host.ngram_size = what.ngram_size;
  batch.host.heads_per_ngram = what.heads_per_ngram;
  return batch;
}

class DeviceBatch {
 public:
  explicit DeviceBatch(const Batch& batch)
      : ids_(batch.ids.bytes()),
        starts_(batch.starts.bytes()),
        context_(batch.context.bytes()),
        multipliers_(batch.multipliers),
        sizes_(batch.sizes),
        offsets_(batch.offsets),
        view_(batch.view(ids_.data(), starts_.data(), context_.data(), multipliers_.as<int64_t>(),
                         sizes_.as<int64_t>(), offsets_.as<int64_t>())) {}
  const NgramBatch& view() const { return view_; }

 private:
  DeviceBuffer ids_, starts_, context_, multipliers_, sizes_, offsets_;
  NgramBatch view_;
};

// By csrc/core's walk and a division. [T, H]
inline std::vector<int64_t> expected_ids(const Batch& batch) {
  const auto ids = batch.ids.bytes(), starts = batch.starts.bytes(), context = batch.context.bytes();
  const NgramBatch view = batch.view(ids.data(), starts.data(), context.data(), batch.multipliers.data(),
                                     batch.sizes.data(), batch.offsets.data());
  std::vector<int64_t> rows;
  for (int64_t t = 0; t < view.num_tokens; ++t) {
    const int64_t request = find_request(view, t);
    for_each_ngram(view, request, chunk_position(view, request, t), t, [&](int32_t order, int64_t mixed) {
      for (int32_t k = 0; k < view.heads_per_ngram; ++k) {
        const size_t head = static_cast<size_t>((order - 2) * view.heads_per_ngram + k);
        const int64_t remainder = mixed % batch.sizes[head];
        rows.push_back((remainder < 0 ? remainder + batch.sizes[head] : remainder) + batch.offsets[head]);
      }
    });
  }
  return rows;
}

}  // namespace ngram_ple::test
