// Exact primality over 64 bits.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>

#include "core/int128.h"

namespace ngram_ple {

inline uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t n) {
  return static_cast<uint64_t>(static_cast<uint128_t>(a) * b % n);
}

inline uint64_t pow_mod(uint64_t base, uint64_t exponent, uint64_t n) {
  uint64_t result = 1 % n;
  for (base %= n; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = mul_mod(result, base, n);
    base = mul_mod(base, base, n);
  }
  return result;
}

// Deterministic Miller-Rabin with Sinclair's seven bases, which decide every n < 2^64.
// A base that is 0 mod n says nothing about n and passes.
inline bool is_prime(uint64_t n) {
  if (n < 2) return false;
  for (uint64_t p : {2ull, 3ull, 5ull, 7ull, 11ull, 13ull}) {
    if (n % p == 0) return n == p;
  }
  uint64_t odd = n - 1;
  int twos = 0;
  while ((odd & 1) == 0) {
    odd >>= 1;
    ++twos;
  }
  for (uint64_t base : {2ull, 325ull, 9375ull, 28178ull, 450775ull, 9780504ull, 1795265022ull}) {
    uint64_t x = pow_mod(base, odd, n);
    if (base % n == 0 || x == 1 || x == n - 1) continue;
    bool composite = true;
    for (int i = 1; i < twos && composite; ++i) {
      x = mul_mod(x, x, n);
      composite = x != n - 1;
    }
    if (composite) return false;
  }
  return true;
}

// The smallest prime >= n. Throws std::overflow_error when there is none below 2^64.
inline uint64_t next_prime(uint64_t n) {
  if (n <= 2) return 2;
  for (uint64_t candidate = n | 1;; candidate += 2) {
    if (is_prime(candidate)) return candidate;
    if (candidate == std::numeric_limits<uint64_t>::max()) {
      throw std::overflow_error("no prime that large fits in 64 bits");
    }
  }
}

}  // namespace ngram_ple
