#include "cpu/ngram_ids.h"

#include "core/ngram_hash.h"

namespace ngram_ple::cpu {

void Hasher::ids(int64_t begin, int64_t end, int64_t* out) const {
  if (begin >= end) return;
  const int32_t heads = batch_.heads_per_ngram;
  int64_t request = find_request(batch_, begin);
  for (int64_t t = begin; t < end; ++t) {
    while (request + 1 < batch_.num_requests && batch_.query_start_loc[request + 1] <= t) ++request;
    const int64_t position = chunk_position(batch_, request, t);
    for_each_ngram(batch_, request, position, t, [&](int32_t order, int64_t mixed) {
      heads_.ids(mixed, (order - 2) * heads, heads, out);
      out += heads;
    });
  }
}

}  // namespace ngram_ple::cpu
