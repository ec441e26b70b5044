// Quotient and remainder by a fixed divisor without a division. The host prepares the reciprocal once.
#pragma once

#include <cstdint>

#include "core/int128.h"
#include "core/portability.h"

namespace ngram_ple {

template <class Uint>
struct QuotientRemainder {
  Uint quotient;
  Uint remainder;
};

// A divisor d >= 1 of the type's whole range and M = floor((2^bits - 1) / d).
template <class Uint>
struct FastDiv {
  Uint divisor;
  Uint reciprocal;
};

template <class Uint>
NGP_HOST_DEVICE inline FastDiv<Uint> make_fast_div(Uint divisor) {
  return {divisor, static_cast<Uint>(static_cast<Uint>(~Uint{0}) / divisor)};
}

// 2^bits/d - M <= 1 and x < 2^bits, so x M / 2^bits is less than 1 below x / d: one correction is enough.
template <class Uint>
NGP_HOST_DEVICE NGP_ALWAYS_INLINE QuotientRemainder<Uint> correct_quotient(Uint x, Uint quotient,
                                                                           Uint divisor) {
  const Uint remainder = x - quotient * divisor;
  if (remainder >= divisor) return {quotient + 1, remainder - divisor};
  return {quotient, remainder};
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE QuotientRemainder<uint32_t> divide(uint32_t x, FastDiv<uint32_t> by) {
  const uint32_t quotient = static_cast<uint32_t>((static_cast<uint64_t>(x) * by.reciprocal) >> 32);
  return correct_quotient(x, quotient, by.divisor);
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE QuotientRemainder<uint64_t> divide(uint64_t x, FastDiv<uint64_t> by) {
  const uint64_t quotient = static_cast<uint64_t>((static_cast<uint128_t>(x) * by.reciprocal) >> 64);
  return correct_quotient(x, quotient, by.divisor);
}

}  // namespace ngram_ple
