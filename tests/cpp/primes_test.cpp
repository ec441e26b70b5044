#include "core/primes.h"

#include <gtest/gtest.h>

#include <vector>

namespace ngram_ple {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kLargestPrime = 18446744073709551557ull;  // 2^64 - 59

TEST(Primes, AgreeWithASieve) {
  constexpr size_t kLimit = 300000;
  std::vector<bool> composite(kLimit, false);
  composite[0] = composite[1] = true;
  for (size_t p = 2; p * p < kLimit; ++p) {
    for (size_t multiple = p * p; !composite[p] && multiple < kLimit; multiple += p)
      composite[multiple] = true;
  }
  for (size_t n = 0; n < kLimit; ++n) ASSERT_EQ(is_prime(n), !composite[n]) << n;
}

TEST(Primes, ModularArithmeticNeedsMoreThan64Bits) {
  EXPECT_EQ(mul_mod(kMax - 1, kMax - 1, kMax), 1u);
  EXPECT_EQ(pow_mod(3, kLargestPrime - 1, kLargestPrime), 1u);
  EXPECT_EQ(pow_mod(5, 0, 7), 1u);
  EXPECT_EQ(pow_mod(5, 0, 1), 0u);
}

TEST(Primes, NextToPowersOfTwo) {
  // {n, 2^n - largest prime below, smallest prime above - 2^n}
  constexpr uint64_t kNeighbours[][3] = {{8, 5, 1},    {16, 15, 1}, {31, 1, 11},   {32, 5, 15},
                                         {48, 59, 21}, {61, 1, 15}, {62, 57, 135}, {63, 25, 29}};
  for (const auto& [power, below, above] : kNeighbours) {
    const uint64_t n = uint64_t{1} << power;
    EXPECT_EQ(next_prime(n), n + above) << power;
    EXPECT_EQ(next_prime(n - below), n - below) << power;
    EXPECT_EQ(next_prime(n - below + 1), n + above) << power;
  }
}

TEST(Primes, CarmichaelNumbersAreComposite) {
  for (uint64_t n : {561ull, 1105ull, 1729ull, 2465ull, 2821ull, 6601ull, 8911ull, 41041ull, 825265ull,
                     321197185ull, 5394826801ull, 232250619601ull, 9746347772161ull, 1436697831295441ull,
                     60977817398996785ull, 7156857700403137441ull}) {
    EXPECT_FALSE(is_prime(n)) << n;
  }
}

TEST(Primes, StrongPseudoprimesAreComposite) {
  // To base 2, then the smallest to the first 2, 3, ... 12 primes as bases (OEIS A014233).
  for (uint64_t n : {2047ull, 3277ull, 4033ull, 4681ull, 8321ull, 1373653ull, 25326001ull, 3215031751ull,
                     2152302898747ull, 3474749660383ull, 341550071728321ull, 3825123056546413051ull}) {
    EXPECT_FALSE(is_prime(n)) << n;
  }
}

TEST(Primes, TheBasesThemselvesAndTheirFactors) {
  for (uint64_t n : {2ull, 3ull, 5ull, 7ull, 13ull, 17ull, 19ull, 37ull, 73ull, 199ull, 407521ull}) {
    EXPECT_TRUE(is_prime(n)) << n;
  }
  for (uint64_t n : {325ull, 9375ull, 28178ull, 450775ull, 9780504ull, 1795265022ull})
    EXPECT_FALSE(is_prime(n)) << n;
}

TEST(Primes, AboveTwoToThe63) {
  EXPECT_TRUE(is_prime(9223372036854775837ull));
  EXPECT_TRUE(is_prime(kLargestPrime));
  for (uint64_t n = kLargestPrime + 1; n != 0; ++n) ASSERT_FALSE(is_prime(n)) << n;
  EXPECT_FALSE(is_prime(4294967291ull * 4294967291ull));  // squares and products of large primes
  EXPECT_FALSE(is_prime(4294967279ull * 4294967291ull));
}

TEST(Primes, NextPrimeHasAnEnd) {
  EXPECT_EQ(next_prime(0), 2u);
  EXPECT_EQ(next_prime(2), 2u);
  EXPECT_EQ(next_prime(3), 3u);
  EXPECT_EQ(next_prime(4), 5u);
  EXPECT_EQ(next_prime(kLargestPrime), kLargestPrime);
  EXPECT_THROW(next_prime(kLargestPrime + 1), std::overflow_error);
  EXPECT_THROW(next_prime(kMax), std::overflow_error);
}

}  // namespace
}  // namespace ngram_ple
