// Reciprocals against the processor's own division, over random operands of every size and the edges.
#include "core/fast_mod.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/fast_div.h"

namespace ngram_ple {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(),
                  kHighest = std::numeric_limits<int64_t>::max();
constexpr int64_t kLargestDivisor = int64_t{1} << 62;

int64_t by_division(int64_t x, int64_t d) {
  const int64_t r = x % d;
  return r < 0 ? r + d : r;
}

std::vector<int64_t> edge_divisors() {
  std::vector<int64_t> divisors{1, 2, 3, 5, 7, 10, 20000003, 20000171, 2147483647, kLargestDivisor};
  for (int power = 2; power <= 62; ++power) {
    const int64_t p = int64_t{1} << power;
    divisors.insert(divisors.end(), {p - 1, p});
    if (power < 62) divisors.push_back(p + 1);
  }
  return divisors;
}

// Multiples of d and their neighbours are where a quotient that is off by one shows.
std::vector<int64_t> edge_dividends(int64_t d) {
  std::vector<int64_t> values{0, 1, -1, 2, -2, kLowest, kLowest + 1, kHighest, kHighest - 1};
  for (int64_t q :
       {int64_t{1}, int64_t{-1}, int64_t{2}, int64_t{-2}, kHighest / d, kLowest / d, kHighest / d / 2}) {
    const uint64_t product = static_cast<uint64_t>(q) * static_cast<uint64_t>(d);
    for (uint64_t near = 0; near < 3; ++near) values.push_back(static_cast<int64_t>(product - 1 + near));
  }
  return values;
}

TEST(FloorMod, EdgesAgreeWithDivision) {
  for (int64_t d : edge_divisors()) {
    const FloorMod by = make_floor_mod(d);
    for (int64_t x : edge_dividends(d)) ASSERT_EQ(floor_mod(x, by), by_division(x, d)) << x << " mod " << d;
  }
}

TEST(FloorMod, RandomOperandsOfEveryWidthAgreeWithDivision) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000000; ++i) {
    const int64_t d = 1 + static_cast<int64_t>((random() >> 2) >> (random() % 62));
    const int64_t x = static_cast<int64_t>(random()) >> (random() % 64);
    ASSERT_EQ(floor_mod(x, make_floor_mod(d)), by_division(x, d)) << x << " mod " << d;
  }
}

TEST(FloorMod, RandomMultiplesOfTheDivisor) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000000; ++i) {
    const int64_t d = 1 + static_cast<int64_t>((random() >> 2) >> (random() % 62));
    const int64_t q = static_cast<int64_t>(random()) / d;
    const int64_t x =
        static_cast<int64_t>(static_cast<uint64_t>(q) * static_cast<uint64_t>(d) + random() % 3 - 1);
    ASSERT_EQ(floor_mod(x, make_floor_mod(d)), by_division(x, d)) << x << " mod " << d;
  }
}

TEST(FloorMod, SmallOnesExhaustively) {
  for (int64_t d = 1; d <= 130; ++d) {
    const FloorMod by = make_floor_mod(d);
    for (int64_t x = -700; x <= 700; ++x) ASSERT_EQ(floor_mod(x, by), by_division(x, d)) << x << " mod " << d;
  }
}

template <class Uint>
void expect_exact_division(uint64_t seed) {
  constexpr int kBits = 8 * sizeof(Uint);
  constexpr Uint kMost = std::numeric_limits<Uint>::max();
  std::mt19937_64 random(seed);
  const auto check = [](Uint x, Uint d) {
    const QuotientRemainder<Uint> got = divide(x, make_fast_div(d));
    ASSERT_EQ(got.quotient, static_cast<Uint>(x / d)) << x << " / " << d;
    ASSERT_EQ(got.remainder, static_cast<Uint>(x % d)) << x << " % " << d;
  };
  for (Uint d : {Uint{1}, Uint{2}, Uint{3}, Uint{16}, Uint{kMost / 2}, Uint(kMost / 2 + 1),
                 Uint(kMost / 2 + 2), Uint(kMost - 1), kMost}) {
    for (Uint x : {Uint{0}, Uint{1}, Uint(d - 1), d, Uint(d + 1), Uint(kMost - 1), kMost}) check(x, d);
  }
  for (int i = 0; i < 1000000; ++i) {
    const Uint d = static_cast<Uint>(std::max<Uint>(1, static_cast<Uint>(random()) >> (random() % kBits)));
    const Uint x = static_cast<Uint>(static_cast<Uint>(random()) >> (random() % kBits));
    check(x, d);
    check(static_cast<Uint>(x / d * d), d);
    check(static_cast<Uint>(x / d * d - 1), d);
  }
}

TEST(FastDiv, ExactOver32Bits) { expect_exact_division<uint32_t>(3); }
TEST(FastDiv, ExactOver64Bits) { expect_exact_division<uint64_t>(4); }

}  // namespace
}  // namespace ngram_ple
