#include "core/hash_plan.h"

#include <gtest/gtest.h>

namespace ngram_ple {
namespace {

using Values = std::vector<int64_t>;

// The published model (reference values of its layer 0 and of a second PLE layer).
HashPlanSpec published(int64_t layer) { return {3, 8, 248320, 20000000, 128, 1234, layer}; }

TEST(HashPlan, PublishedModelLayer0) {
  const HashPlan plan = make_hash_plan(published(0));
  EXPECT_EQ(plan.multipliers, (Values{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(plan.head_sizes,
            (Values{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081,
                    20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}));
  EXPECT_EQ(plan.num_rows, 320001446);
  EXPECT_EQ(plan.padded_rows, 320001536);
  int64_t sum = 0;
  for (size_t h = 0; h < plan.head_sizes.size(); sum += plan.head_sizes[h++])
    EXPECT_EQ(plan.head_offsets[h], sum);
}

TEST(HashPlan, PublishedModelLayer1) {
  const HashPlan plan = make_hash_plan(published(1));
  EXPECT_EQ(plan.multipliers, (Values{3352040966061, 19752442147475, 10742103100073}));
  EXPECT_EQ(plan.head_sizes.front(), 20000213);
  EXPECT_EQ(plan.head_sizes.back(), 20000429);
  EXPECT_EQ(plan.num_rows, 320005046);
  EXPECT_EQ(plan.padded_rows, 320005120);
}

TEST(HashPlan, SmallByHand) {
  // N 3, K 2, base 10: primes from 11 on; layer 1 goes on where layer 0 ended.
  const HashPlan first = make_hash_plan({3, 2, 100, 10, 8, 0, 0});
  EXPECT_EQ(first.head_sizes, (Values{11, 13, 17, 19}));
  EXPECT_EQ(first.head_offsets, (Values{0, 11, 24, 41}));
  EXPECT_EQ(first.num_rows, 60);
  EXPECT_EQ(first.padded_rows, 64);
  EXPECT_EQ(make_hash_plan({3, 2, 100, 10, 8, 0, 1}).head_sizes, (Values{23, 29, 31, 37}));
}

TEST(HashPlan, TheBaseItselfMayBeThePrime) {
  EXPECT_EQ(make_hash_plan({2, 2, 100, 11, 1, 0, 0}).head_sizes, (Values{11, 13}));
  EXPECT_EQ(make_hash_plan({2, 3, 100, 1, 1, 0, 0}).head_sizes, (Values{2, 3, 5}));
}

TEST(HashPlan, PaddingIsExactWhenItDivides) {
  EXPECT_EQ(make_hash_plan({2, 2, 100, 11, 24, 0, 0}).padded_rows, 24);
  EXPECT_EQ(make_hash_plan({2, 2, 100, 11, 1, 0, 0}).padded_rows, 24);
  EXPECT_EQ(make_hash_plan({2, 2, 100, 11, 23, 0, 0}).padded_rows, 46);
}

TEST(HashPlan, MultipliersOfExtremeVocabularies) {
  const int64_t largest = std::numeric_limits<int64_t>::max();
  // half becomes 1: every multiplier is 1.
  EXPECT_EQ(make_hash_plan({4, 1, largest, 10, 1, 77, 0}).multipliers, (Values{1, 1, 1, 1}));
  for (int64_t multiplier : make_hash_plan({5, 1, 1, 10, 1, ~uint64_t{0}, 3}).multipliers) {
    EXPECT_EQ(multiplier % 2, 1);
    EXPECT_GT(multiplier, 0);
  }
}

TEST(HashPlan, TheSeedCountsModulo64Bits) {
  // seed + 10007 L wraps to 0 in the second.
  EXPECT_EQ(make_hash_plan({2, 1, 100, 10, 1, 10007, 0}).multipliers,
            make_hash_plan({2, 1, 100, 10, 1, 0, 1}).multipliers);
  EXPECT_EQ(make_hash_plan({2, 1, 100, 10, 1, 0, 0}).multipliers,
            make_hash_plan({2, 1, 100, 10, 1, uint64_t{0} - 10007, 1}).multipliers);
}

struct BadField {
  const char* name;
  HashPlanSpec spec;
};

TEST(HashPlan, OutOfRangeFieldsAreNamed) {
  const BadField fields[] = {
      {"ngram_size", {1, 1, 10, 10, 1, 0, 0}},
      {"heads_per_ngram", {2, 0, 10, 10, 1, 0, 0}},
      {"vocab_size", {2, 1, 0, 10, 1, 0, 0}},
      {"ngram_vocab_size_base", {2, 1, 10, 0, 1, 0, 0}},
      {"make_ngram_vocab_size_divisible_by", {2, 1, 10, 10, 0, 0, 0}},
      {"layer", {2, 1, 10, 10, 1, 0, -1}},
      {"ngram_size", {INT64_MAX, 1, 10, 10, 1, 0, 0}},
      {"heads_per_ngram", {3, INT64_MAX, 10, 10, 1, 0, 0}},
      {"layer", {2, 1, 10, 10, 1, 0, INT64_MAX}},
  };
  for (const BadField& field : fields) {
    try {
      make_hash_plan(field.spec);
      ADD_FAILURE() << field.name << " passed";
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).find(field.name), 0u) << error.what();
      EXPECT_NE(std::string(error.what()).find(", got "), std::string::npos) << error.what();
    }
  }
}

TEST(HashPlan, MoreThan2To62RowsOverflow) {
  constexpr int64_t kLargest = (int64_t{1} << 62) - 57;  // the largest prime below 2^62
  EXPECT_EQ(make_hash_plan({2, 1, 10, kLargest, 1, 0, 0}).num_rows, kLargest);
  EXPECT_THROW(make_hash_plan({2, 1, 10, kLargest + 1, 1, 0, 0}), std::overflow_error);
  EXPECT_THROW(make_hash_plan({2, 2, 10, int64_t{1} << 61, 1, 0, 0}), std::overflow_error);
  EXPECT_THROW(make_hash_plan({2, 1, 10, std::numeric_limits<int64_t>::max(), 1, 0, 0}), std::overflow_error);
  EXPECT_THROW(make_hash_plan({2, 1, 10, 10, (int64_t{1} << 62) + 1, 0, 0}), std::overflow_error);
  EXPECT_EQ(make_hash_plan({2, 1, 10, 10, int64_t{1} << 62, 0, 0}).padded_rows, int64_t{1} << 62);
  EXPECT_GT(make_hash_plan({2, 1, 10, kLargest, int64_t{1} << 62, 0, 0}).padded_rows, 0);
}

}  // namespace
}  // namespace ngram_ple
