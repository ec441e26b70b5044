#include "cpu/ngram_ids.h"

#include "core/ngram_hash.h"

namespace ngram_ple::cpu {

Hasher::Hasher(const NgramBatch& batch) : batch_(batch) {
  for (int32_t h = 0; h < batch.num_heads(); ++h) moduli_.push_back(make_floor_mod(batch.ngram_heads_vocab_sizes[h]));
}

void Hasher::ids(int64_t begin, int64_t end, int64_t* out) const {
  if (begin >= end) return;
  const int32_t heads = batch_.heads_per_ngram;
  int64_t request = find_request(batch_, begin);
  for (int64_t t = begin; t < end; ++t) {
    while (request + 1 < batch_.num_requests && batch_.query_start_loc[request + 1] <= t) ++request;
    const int64_t position = chunk_position(batch_, request, t);
    for_each_ngram(batch_, request, position, t, [&](int32_t order, int64_t mixed) {
      const int64_t first = int64_t{order - 2} * heads;
      const FloorMod* NGP_RESTRICT moduli = moduli_.data() + first;
      const int64_t* NGP_RESTRICT offsets = batch_.ngram_heads_offsets + first;
      for (int32_t k = 0; k < heads; ++k) out[k] = floor_mod(mixed, moduli[k]) + offsets[k];
      out += heads;
    });
  }
}

}  // namespace ngram_ple::cpu
