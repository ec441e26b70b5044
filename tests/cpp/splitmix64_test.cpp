#include "core/splitmix64.h"

#include <gtest/gtest.h>

namespace ngram_ple {
namespace {

TEST(SplitMix64, KnownSequenceOfSeed1234567) {
  constexpr uint64_t kSequence[] = {6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                                    4593380528125082431ull, 16408922859458223821ull};
  uint64_t state = 1234567;
  for (uint64_t expected : kSequence) {
    EXPECT_EQ(splitmix64(state), expected);
    state += kSplitMixGamma;
  }
}

TEST(SplitMix64, EdgesOfTheState) {
  EXPECT_EQ(splitmix64(0), 0xE220A8397B1DCDAFull);
  EXPECT_EQ(splitmix64(0 - kSplitMixGamma), 0u);
  static_assert(splitmix64(0) == 0xE220A8397B1DCDAFull, "usable at compile time");
}

}  // namespace
}  // namespace ngram_ple
