// A ragged batch of tokens and the plan that hashes it: the arguments of every hashing kernel.
#pragma once

#include <cstdint>

#include "core/int_array.h"
#include "core/portability.h"

namespace ngram_ple {

struct NgramBatch {
  IntArray input_ids;        // [T]
  IntArray query_start_loc;  // [R + 1]
  IntArray ngram_context;    // [>= R, N - 1], oldest token first
  int64_t context_stride;    // elements between rows of ngram_context
  int64_t num_tokens;        // T
  int64_t num_requests;      // R
  int64_t eos_token_id;
  int32_t ngram_size;                      // N
  int32_t heads_per_ngram;                 // K
  const int64_t* layer_multipliers;        // [N]
  const int64_t* ngram_heads_vocab_sizes;  // [H]
  const int64_t* ngram_heads_offsets;      // [H]

  NGP_HOST_DEVICE int32_t num_heads() const { return (ngram_size - 1) * heads_per_ngram; }
};

}  // namespace ngram_ple
