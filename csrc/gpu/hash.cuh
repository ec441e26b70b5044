// Row numbers of n-gram heads, one (token, head) a lane. Small batches wait for memory, not for arithmetic,
// so everything whose address is known is loaded before anything is used.
#pragma once

#include "core/fast_div.h"
#include "core/fast_mod.h"
#include "gpu/requests.cuh"

namespace ngram_ple::gpu {

// N-grams up to this size are hashed from registers, longer ones by core's loop.
inline constexpr int kUnrolledNgram = 4;

// floor((2^64 - 1) / d) for 1 <= d <= 2^62, as make_floor_mod has it. The estimate is below 2^51 and off by
// less than one unit (two roundings of 2^-53 each), so it is one too large or too small at most.
NGP_DEVICE FloorMod make_floor_mod_fast(int64_t divisor) {
  if (divisor < (1 << 13)) return make_floor_mod(divisor);
  const uint64_t estimate = static_cast<uint64_t>(1.0 / static_cast<double>(divisor) * 0x1p64);
  const int64_t rest = static_cast<int64_t>(~uint64_t{0} - estimate * static_cast<uint64_t>(divisor));
  return {divisor, estimate + (rest >= divisor ? 1u : 0u) - (rest < 0 ? 1u : 0u)};
}

// Where a token stands: its request and how many of the request's tokens precede it.
struct Standing {
  int64_t request, position;
};

// Within 0..t whatever the boundaries say.
NGP_DEVICE int64_t position_in_request(const Request& request, int64_t t) {
  const int64_t start = request.start < 0 ? 0 : request.start;
  return t < start ? 0 : t - start;
}

// Predecessors that lie before the chunk: context[s] is predecessor s, for the s > position.
NGP_DEVICE void load_context(const NgramBatch& batch, Standing at, PendingInt (&context)[kUnrolledNgram]) {
  const int32_t columns = batch.ngram_size - 1;
  if (at.request < 0 || at.position >= columns) return;
#pragma unroll
  for (int s = 1; s < kUnrolledNgram; ++s) {
    const int64_t wanted = columns - s + at.position;
    const int64_t column = wanted < 0 ? 0 : (wanted < columns ? wanted : columns - 1);
    context[s] = load_pending(batch.ngram_context, at.request * batch.context_stride + column);
  }
}

// for_each_ngram of core/ngram_hash.h for the n-gram of one head.
NGP_DEVICE int64_t mix_long_ngram(const NgramBatch& batch, int64_t t, int32_t head) {
  const int32_t order = head / batch.heads_per_ngram + 2;
  const Request request = find_request_together(batch, t);
  int64_t result = 0;
  for_each_ngram(batch, request.index, position_in_request(request, t), t,
                 [&](int32_t visited, int64_t mixed) { result = visited == order ? mixed : result; });
  return result;
}

NGP_DEVICE int64_t mix_short_ngram(const NgramBatch& batch, int64_t t, int32_t head) {
  PendingInt tokens[kUnrolledNgram], context[kUnrolledNgram] = {};
  int64_t multipliers[kUnrolledNgram];
#pragma unroll
  for (int s = 0; s < kUnrolledNgram; ++s) {
    tokens[s] = load_pending(batch.input_ids, t < s ? 0 : t - s);
    multipliers[s] = batch.layer_multipliers[s < batch.ngram_size ? s : 0];
  }
  // One request, or one token a request: the standing can be guessed and the context loaded with the rest.
  const bool single = batch.num_requests == 1, decoding = batch.num_requests == batch.num_tokens;
  const Standing guess = single ? Standing{0, t} : (decoding ? Standing{t, 0} : Standing{-1, 0});
  load_context(batch, guess, context);

  const Request request = find_request_together(batch, t);
  const int64_t position = position_in_request(request, t);
  if (request.index != guess.request || position != guess.position) {
    load_context(batch, {request.index, position}, context);
  }

  uint64_t mixed = wrapping_product(tokens[0].value(), multipliers[0]);
  bool ended = false;
#pragma unroll
  for (int s = 1; s < kUnrolledNgram; ++s) {
    if (s < batch.ngram_size) {
      const int64_t before_chunk = request.index < 0 ? batch.eos_token_id : context[s].value();
      const int64_t predecessor = position >= s ? tokens[s].value() : before_chunk;
      const int64_t token = ended ? batch.eos_token_id : predecessor;
      ended = token == batch.eos_token_id;
      // Head h hashes order h / K + 2, hence predecessor s when (s - 1) K <= h.
      if ((s - 1) * batch.heads_per_ngram <= head) mixed ^= wrapping_product(token, multipliers[s]);
    }
  }
  return static_cast<int64_t>(mixed);
}

// The row number that each (token, head) of a batch asks for; rows of the result are numbered t H + head.
struct HashedIds {
  NgramBatch batch;
  FastDiv<uint64_t> by_heads;

  // Every lane calls it; `row` does not decrease from lane to lane.
  NGP_DEVICE int64_t operator()(int64_t row) const {
    const auto place = divide(static_cast<uint64_t>(row), by_heads);
    const int64_t t = static_cast<int64_t>(place.quotient);
    const int32_t head = static_cast<int32_t>(place.remainder);
    const int64_t size = batch.ngram_heads_vocab_sizes[head];
    const int64_t offset = batch.ngram_heads_offsets[head];
    const int64_t mixed =
        batch.ngram_size <= kUnrolledNgram ? mix_short_ngram(batch, t, head) : mix_long_ngram(batch, t, head);
    return floor_mod(mixed, make_floor_mod_fast(size)) + offset;
  }
};

inline HashedIds make_hashed_ids(const NgramBatch& batch) {
  return {batch, make_fast_div(static_cast<uint64_t>(batch.num_heads()))};
}

}  // namespace ngram_ple::gpu
