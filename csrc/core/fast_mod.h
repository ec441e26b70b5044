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
// 0 <= 2^64/d - M <= 1 and |x| <= 2^63, so x M / 2^64 is off x / d by at most 1/2, toward zero: its floor is
// one too small at most for x >= 0 and one too large at most for x < 0. Less one for x < 0, the quotient is
// never too large and the remainder lies in [0, 2 d). The signed product's high word is the unsigned one's,
// less M for x < 0.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE int64_t floor_mod(int64_t x, FloorMod m) {
  const uint64_t bits = static_cast<uint64_t>(x), divisor = static_cast<uint64_t>(m.divisor);
  const uint64_t high = static_cast<uint64_t>((static_cast<uint128_t>(bits) * m.reciprocal) >> 64);
  const uint64_t quotient = high - (static_cast<uint64_t>(x >> 63) & (m.reciprocal + 1));
  const uint64_t r = bits - quotient * divisor;
  // A mask, not a branch: whether r >= d is nearly random.
  return static_cast<int64_t>(r - (divisor & (uint64_t{0} - static_cast<uint64_t>(r >= divisor))));
}

}  // namespace ngram_ple
