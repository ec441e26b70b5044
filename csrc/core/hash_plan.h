// The hash plan of one PLE layer: everything that follows from its configuration.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/primes.h"
#include "core/splitmix64.h"

namespace ngram_ple {

struct HashPlanSpec {
  int64_t ngram_size;                     // N >= 2: the longest n-gram
  int64_t heads_per_ngram;                // K >= 1 heads for each of the orders 2..N
  int64_t vocab_size;                     // V >= 1
  int64_t ngram_vocab_size_base;          // B >= 1: every head has a prime number of rows >= B
  int64_t ngram_vocab_size_divisible_by;  // D >= 1: the table is padded to a multiple of it
  uint64_t seed;
  int64_t layer;  // L >= 0: index among the PLE layers
};

struct HashPlan {
  std::vector<int64_t> multipliers;   // [N], odd
  std::vector<int64_t> head_sizes;    // [H], distinct primes
  std::vector<int64_t> head_offsets;  // [H], exclusive running sum of head_sizes
  int64_t num_rows = 0;               // sum of head_sizes
  int64_t padded_rows = 0;            // num_rows rounded up to a multiple of D
};

// The largest head the hashing kernels take (core/fast_mod.h), far above any memory.
inline constexpr int64_t kMaxHeadSize = int64_t{1} << 62;

inline void require_at_least(const char* field, int64_t value, int64_t least) {
  if (value < least) {
    throw std::invalid_argument(std::string(field) + " must be at least " + std::to_string(least) + ", got " +
                                std::to_string(value));
  }
}

inline void require_at_most(const char* field, int64_t value, int64_t most) {
  if (value > most) {
    throw std::invalid_argument(std::string(field) + " must be at most " + std::to_string(most) + ", got " +
                                std::to_string(value));
  }
}

// m[i] = 2 * (splitmix64(seed + 10007 L + gamma (i + 1)) % half) + 1, half = max(1, ((2^63 - 1) / V) / 2),
// so that a token below V times a multiplier stays below 2^63.
inline std::vector<int64_t> layer_multipliers(const HashPlanSpec& spec) {
  const uint64_t largest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const uint64_t half = std::max<uint64_t>(1, largest / static_cast<uint64_t>(spec.vocab_size) / 2);
  std::vector<int64_t> multipliers;
  for (uint64_t i = 0; i < static_cast<uint64_t>(spec.ngram_size); ++i) {
    const uint64_t state =
        spec.seed + 10007ull * static_cast<uint64_t>(spec.layer) + kSplitMixGamma * (i + 1);
    multipliers.push_back(static_cast<int64_t>(2 * (splitmix64(state) % half) + 1));
  }
  return multipliers;
}

// Head h of layer L has the (L H + h + 1)-th prime >= B, so no two heads of a model share a size.
inline HashPlan make_hash_plan(const HashPlanSpec& spec) {
  require_at_least("ngram_size", spec.ngram_size, 2);
  require_at_least("heads_per_ngram", spec.heads_per_ngram, 1);
  require_at_least("vocab_size", spec.vocab_size, 1);
  require_at_least("ngram_vocab_size_base", spec.ngram_vocab_size_base, 1);
  require_at_least("make_ngram_vocab_size_divisible_by", spec.ngram_vocab_size_divisible_by, 1);
  require_at_least("layer", spec.layer, 0);
  // Far above any model, and products of them stay inside 64 bits.
  require_at_most("ngram_size", spec.ngram_size, 1024);
  require_at_most("heads_per_ngram", spec.heads_per_ngram, 65536);
  require_at_most("layer", spec.layer, 1 << 20);
  const int64_t num_heads = (spec.ngram_size - 1) * spec.heads_per_ngram;

  HashPlan plan;
  plan.multipliers = layer_multipliers(spec);
  uint64_t prime = static_cast<uint64_t>(spec.ngram_vocab_size_base) - 1;
  for (int64_t skipped = 0; skipped < spec.layer * num_heads; ++skipped) prime = next_prime(prime + 1);
  for (int64_t h = 0; h < num_heads; ++h) {
    prime = next_prime(prime + 1);
    if (prime > static_cast<uint64_t>(kMaxHeadSize - plan.num_rows)) {
      throw std::overflow_error("the heads' sizes add up to more than 2^62 rows");
    }
    plan.head_sizes.push_back(static_cast<int64_t>(prime));
    plan.head_offsets.push_back(plan.num_rows);
    plan.num_rows += static_cast<int64_t>(prime);
  }
  const int64_t divisor = spec.ngram_vocab_size_divisible_by;
  if (divisor > kMaxHeadSize) throw std::overflow_error("make_ngram_vocab_size_divisible_by is above 2^62");
  plan.padded_rows = (plan.num_rows + divisor - 1) / divisor * divisor;
  return plan;
}

}  // namespace ngram_ple
