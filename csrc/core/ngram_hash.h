// The n-gram walk: a token's request, its predecessors, and the hash of each n-gram.
#pragma once

#include <cstdint>

#include "core/ngram_batch.h"
#include "core/portability.h"

namespace ngram_ple {

// The last request that starts at or before token t (-1 when there is none). Tokens past the last boundary,
// the padding of a captured graph, so count as the last request's.
NGP_HOST_DEVICE inline int64_t find_request(const NgramBatch& batch, int64_t t) {
  int64_t low = 0, high = batch.num_requests;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (batch.query_start_loc[middle] <= t) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

// How many tokens of its own request stand before t, within 0..t whatever the boundaries say: they are a
// promise that only the CPU checks, and no promise may decide what memory is read.
NGP_HOST_DEVICE inline int64_t chunk_position(const NgramBatch& batch, int64_t request, int64_t t) {
  const int64_t start = request < 0 ? t : batch.query_start_loc[request];
  return start <= 0 ? t : (start < t ? t - start : 0);
}

// Predecessor `distance` (1..N-1) of token t, before EOS has cut the history.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE int64_t predecessor(const NgramBatch& batch, int64_t request,
                                                      int64_t position, int64_t t, int32_t distance) {
  if (position >= distance) return batch.input_ids[t - distance];
  if (request < 0) return batch.eos_token_id;
  return batch.ngram_context[request * batch.context_stride + batch.ngram_size - 1 - distance + position];
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint64_t wrapping_product(int64_t token, int64_t multiplier) {
  return static_cast<uint64_t>(token) * static_cast<uint64_t>(multiplier);
}

// Calls visit(order, mixed) for the n-grams of order 2..N that end in token t, where
//   mixed(n) = tok m[0] ^ pred_1 m[1] ^ ... ^ pred_(n-1) m[n-1]   (signed 64-bit products that wrap)
// and, from the first predecessor that is EOS on, every older one counts as EOS.
template <class Visit>
NGP_HOST_DEVICE NGP_ALWAYS_INLINE void for_each_ngram(const NgramBatch& batch, int64_t request,
                                                      int64_t position, int64_t t, Visit&& visit) {
  uint64_t mixed = wrapping_product(batch.input_ids[t], batch.layer_multipliers[0]);
  bool ended = false;
  for (int32_t distance = 1; distance < batch.ngram_size; ++distance) {
    int64_t token = batch.eos_token_id;
    if (!ended) {
      token = predecessor(batch, request, position, t, distance);
      ended = token == batch.eos_token_id;
    }
    mixed ^= wrapping_product(token, batch.layer_multipliers[distance]);
    visit(distance + 1, static_cast<int64_t>(mixed));
  }
}

}  // namespace ngram_ple
