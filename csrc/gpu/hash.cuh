// Row numbers of n-gram heads, one (token, head) a lane. Small batches wait for memory, not for arithmetic,
// so everything whose address is known is loaded before anything is used.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/fast_div.h"
#include "core/fast_mod.h"
#include "core/ngram_hash.h"
#include "gpu/requests.cuh"

namespace ngram_ple::gpu {

// N-grams up to this size are hashed from registers, longer ones by a loop.
inline constexpr int kUnrolledNgram = 4;

// x mod d in [0, d), for every x and every d within [2^14, 2^62].
//
// x, d, 1 / d and their product are rounded, which puts the quotient's estimate within |x / d| 2^-50.6 of x /
// d, that is 2^-1.6; rounded to an integer it is less than 0.84 off, so -d < x - q d < d.
NGP_DEVICE int64_t large_floor_mod(int64_t x, int64_t d) {
  const int64_t quotient = nearest_integer(static_cast<double>(x) * reciprocal(static_cast<double>(d)));
  const int64_t r = static_cast<int64_t>(static_cast<uint64_t>(x) -
                                         static_cast<uint64_t>(quotient) * static_cast<uint64_t>(d));
  return r < 0 ? r + d : r;
}
inline constexpr int64_t kLargeDivisor = 1 << 14;

// x mod divisors[i], as floor_mod of core/fast_mod.h.
template <int kCount>
NGP_DEVICE void floor_mods(int64_t x, const int64_t (&divisors)[kCount], int64_t (&remainders)[kCount]) {
  bool large = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) large = large && divisors[i] >= kLargeDivisor;
  if (large) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) remainders[i] = large_floor_mod(x, divisors[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) remainders[i] = floor_mod(x, make_floor_mod(divisors[i]));
  }
}

// Where a token stands: its request (-1: none) and how many of the request's tokens precede it.
struct Standing {
  int32_t request, position;
};

// Within 0..t whatever the boundaries say.
NGP_DEVICE Standing standing_in(const Request& request, int32_t t) {
  return {request.index, t < request.start ? 0 : t - request.start};
}

// Predecessor `distance` of a token whose request holds fewer tokens before it. Always an element of the
// context.
NGP_DEVICE PendingInt load_context(const TokenBatch& batch, Standing at, int32_t distance) {
  const int32_t columns = batch.arrays.ngram_size - 1, wanted = columns - distance + at.position;
  const int32_t column = wanted < 0 ? 0 : (wanted < columns ? wanted : columns - 1);
  return load_pending(batch.arrays.ngram_context, at.request * batch.arrays.context_stride + column);
}

NGP_DEVICE void load_contexts(const TokenBatch& batch, Standing at, PendingInt (&context)[kUnrolledNgram]) {
  if (at.request < 0 || at.position >= batch.arrays.ngram_size - 1) return;
#pragma unroll
  for (int s = 1; s < kUnrolledNgram; ++s) {
    if (s < batch.arrays.ngram_size) context[s] = load_context(batch, at, s);
  }
}

// Mixes predecessors into the hash of one head's n-gram, nearest first.
struct Mixer {
  uint64_t mixed;
  int64_t eos;
  bool ended = false;

  NGP_DEVICE void add(int64_t predecessor, int64_t multiplier, bool wanted) {
    const int64_t token = ended ? eos : predecessor;
    ended = token == eos;
    if (wanted) mixed ^= wrapping_product(token, multiplier);
  }
};

NGP_DEVICE int64_t mix_short_ngram(const TokenBatch& batch, int32_t t, int32_t head) {
  const NgramBatch& arrays = batch.arrays;
  PendingInt tokens[kUnrolledNgram], context[kUnrolledNgram] = {};
  int64_t multipliers[kUnrolledNgram];
#pragma unroll
  for (int s = 0; s < kUnrolledNgram; ++s) {
    if (s < arrays.ngram_size) {
      tokens[s] = load_pending(arrays.input_ids, t < s ? 0 : t - s);
      multipliers[s] = arrays.layer_multipliers[s];
    }
  }
  // One request, or one token a request: the standing can be guessed and the context loaded with the rest.
  const bool single = batch.num_requests == 1, decoding = batch.num_requests == batch.num_tokens;
  const Standing guess = single ? Standing{0, t} : Standing{decoding ? t : -1, 0};
  load_contexts(batch, guess, context);
  const Standing at = standing_in(find_request(batch, t), t);
  if (at.request != guess.request || at.position != guess.position) load_contexts(batch, at, context);

  Mixer mixer{wrapping_product(tokens[0].value(), multipliers[0]), arrays.eos_token_id};
#pragma unroll
  for (int s = 1; s < kUnrolledNgram; ++s) {
    if (s < arrays.ngram_size) {
      const int64_t before_chunk = at.request < 0 ? arrays.eos_token_id : context[s].value();
      // Head h hashes order h / K + 2, hence predecessor s when (s - 1) K <= h.
      mixer.add(at.position >= s ? tokens[s].value() : before_chunk, multipliers[s],
                (s - 1) * arrays.heads_per_ngram <= head);
    }
  }
  return static_cast<int64_t>(mixer.mixed);
}

NGP_DEVICE int64_t mix_long_ngram(const TokenBatch& batch, int32_t t, int32_t head) {
  const NgramBatch& arrays = batch.arrays;
  const Standing at = standing_in(find_request(batch, t), t);
  Mixer mixer{wrapping_product(load_pending(arrays.input_ids, t).value(), arrays.layer_multipliers[0]),
              arrays.eos_token_id};
#pragma unroll 1
  for (int32_t s = 1; s < arrays.ngram_size; ++s) {
    int64_t predecessor = arrays.eos_token_id;
    if (at.position >= s) {
      predecessor = load_pending(arrays.input_ids, t - s).value();
    } else if (at.request >= 0) {
      predecessor = load_context(batch, at, s).value();
    }
    mixer.add(predecessor, arrays.layer_multipliers[s], int64_t{s - 1} * arrays.heads_per_ngram <= head);
  }
  return static_cast<int64_t>(mixer.mixed);
}

// The row number that each (token, head) of a batch asks for; rows of the result are numbered t H + head.
struct HashedIds {
  static constexpr int kResidentBlocks = 0;
  TokenBatch batch;
  FastDiv<uint32_t> by_heads;
  int32_t first_token;  // row 0 is this token's

  struct Place {
    int32_t token, head;
  };
  NGP_DEVICE Place place_of(int64_t row) const {
    const auto place = divide(static_cast<uint32_t>(row), by_heads);
    return {first_token + static_cast<int32_t>(place.quotient), static_cast<int32_t>(place.remainder)};
  }
  NGP_DEVICE int64_t size(int32_t head) const { return batch.arrays.ngram_heads_vocab_sizes[head]; }
  NGP_DEVICE int64_t offset(int32_t head) const { return batch.arrays.ngram_heads_offsets[head]; }

  // Every lane calls it; tokens do not decrease from lane to lane.
  NGP_DEVICE int64_t mixed(Place at) const {
    const bool is_short = batch.arrays.ngram_size <= kUnrolledNgram;
    return is_short ? mix_short_ngram(batch, at.token, at.head) : mix_long_ngram(batch, at.token, at.head);
  }

  // Every lane calls it; rows do not decrease from lane to lane.
  NGP_DEVICE int64_t operator()(int64_t row) const {
    const Place at = place_of(row);
    const int64_t divisor[] = {size(at.head)}, first_row = offset(at.head);
    int64_t remainder[1];
    floor_mods(mixed(at), divisor, remainder);
    return remainder[0] + first_row;
  }
};

// Calls start(ids, first_row, num_rows) for pieces of the batch whose rows can be counted in 32 bits: one,
// but for results far beyond today's memories.
template <class Start>
void for_each_piece(const char* op, const NgramBatch& batch, Start&& start) {
  constexpr int64_t kMost = 0x7FFFFFFE;
  if (batch.num_tokens > kMost || batch.num_requests > kMost) {
    throw std::runtime_error(std::string(op) +
                             ": input_ids must hold fewer than 2^31 - 1 tokens and requests, got " +
                             std::to_string(batch.num_tokens) + " and " + std::to_string(batch.num_requests));
  }
  const int64_t heads = batch.num_heads(), most_tokens = std::max<int64_t>(1, 0xFFFFFFFF / heads);
  const TokenBatch tokens{batch, static_cast<int32_t>(batch.num_tokens),
                          static_cast<int32_t>(batch.num_requests)};
  for (int64_t t = 0; t < batch.num_tokens; t += most_tokens) {
    const int64_t count = std::min(most_tokens, batch.num_tokens - t);
    const HashedIds ids{tokens, make_fast_div(static_cast<uint32_t>(heads)), static_cast<int32_t>(t)};
    start(ids, t * heads, count * heads);
  }
}

}  // namespace ngram_ple::gpu
