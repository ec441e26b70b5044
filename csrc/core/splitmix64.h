// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#pragma once

#include <cstdint>

#include "core/portability.h"

namespace ngram_ple {

inline constexpr uint64_t kSplitMixGamma = 0x9E3779B97F4A7C15ull;

// One step: advance the state `x` by gamma and mix it. Arithmetic mod 2^64.
NGP_HOST_DEVICE constexpr uint64_t splitmix64(uint64_t x) {
  x += kSplitMixGamma;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace ngram_ple
