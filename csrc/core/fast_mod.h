// Floor modulo by a fixed divisor without a division.
#pragma once

#include <cstdint>
#include <limits>

#include "core/int128.h"
#include "core/portability.h"

namespace ngram_ple {

// A divisor 1 <= d <= 2^62 and M = floor((2^64 - 1) / d).
struct FloorMod {
  int64_t divisor;
  uint64_t reciprocal;
};

NGP_HOST_DEVICE inline FloorMod make_floor_mod(int64_t divisor) {
  return {divisor, ~uint64_t{0} / static_cast<uint64_t>(divisor)};
}

// x mod d in [0, d), for every 64-bit x (torch.remainder's sign rule).
//
// 0 <= 2^64/d - M <= 1 and |x| <= 2^63, so x M / 2^64 is off x / d by at most 1/2, toward zero: the quotient is one
// too small at most for x >= 0 and one too large at most for x < 0. Hence -d <= x - q d < 2 d.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE int64_t floor_mod(int64_t x, FloorMod m) {
  const int64_t quotient = static_cast<int64_t>((static_cast<int128_t>(x) * static_cast<int128_t>(m.reciprocal)) >> 64);
  const int64_t r = static_cast<int64_t>(static_cast<uint64_t>(x) -
                                         static_cast<uint64_t>(quotient) * static_cast<uint64_t>(m.divisor));
  return r < 0 ? r + m.divisor : (r >= m.divisor ? r - m.divisor : r);
}

}  // namespace ngram_ple
