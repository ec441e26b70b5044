// The CPU kernel against the walk of reference.h.
#include "cpu/ngram_ids.h"

#include <gtest/gtest.h>

#include "batches.h"

namespace ngram_ple {
namespace {

using testing_batches::HeldBatch;
using testing_batches::random_batch;
using testing_batches::with_plan;

void expect_reference(const reference::Batch& batch, const HeldBatch& held, int64_t begin, int64_t end) {
  const size_t heads = batch.sizes.size();
  const std::vector<std::vector<int64_t>> expected = reference::ngram_ids(batch);
  testing_memory::GuardedBytes out(static_cast<size_t>(end - begin) * heads * 8);
  cpu::Hasher(held.view).ids(begin, end, reinterpret_cast<int64_t*>(out.data()));
  ASSERT_TRUE(out.intact());
  for (int64_t t = begin; t < end; ++t) {
    std::vector<int64_t> got(heads);
    std::memcpy(got.data(), out.data() + static_cast<size_t>(t - begin) * heads * 8, heads * 8);
    ASSERT_EQ(got, expected[static_cast<size_t>(t)]) << "token " << t;
  }
}

TEST(NgramIds, PublishedModelKnownValues) {
  const HashPlan plan = make_hash_plan({3, 8, 248320, 20000000, 128, 1234, 0});
  reference::Batch batch;
  batch.input_ids = {9707};
  batch.query_start_loc = {0, 1};
  batch.contexts = {{248044, 248044}};
  batch.multipliers = plan.multipliers;
  batch.sizes = plan.head_sizes;
  batch.offsets = plan.head_offsets;
  batch.eos = 248044;
  batch.heads_per_ngram = 8;
  const HeldBatch held(batch);
  std::vector<int64_t> ids(16);
  cpu::Hasher(held.view).ids(0, 1, ids.data());
  EXPECT_EQ(ids, (std::vector<int64_t>{16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017,
                                       152932897, 169641436, 182022480, 209277433, 237891023, 256841529,
                                       277007269, 290665954, 300984276}));
}

TEST(NgramIds, RandomBatchesOfEveryShape) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    const int ngram_size = 2 + round % 5, heads = 1 + round / 5 % 4, requests = 1 + round % 7;
    const reference::Batch batch = random_batch(random, ngram_size, heads, requests, 6, round % 3);
    const int64_t stride = round % 2 == 0 ? 0 : ngram_size - 1 + round % 11;
    const HeldBatch held(batch, round % 8, stride);
    expect_reference(batch, held, 0, held.view.num_tokens);
  }
}

TEST(NgramIds, AnyRangeOfTokensStandsAlone) {
  std::mt19937_64 random(2);
  const reference::Batch batch = random_batch(random, 4, 2, 6, 5, 2);
  const HeldBatch held(batch);
  for (int64_t begin = 0; begin <= held.view.num_tokens; ++begin) {
    for (int64_t end = begin; end <= held.view.num_tokens; ++end) expect_reference(batch, held, begin, end);
  }
}

TEST(NgramIds, HugeAndNegativeTokensWrap) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    reference::Batch batch = random_batch(random, 3, 3, 3, 8, 0);
    for (int64_t& token : batch.input_ids) {
      token = static_cast<int64_t>(random() % 2 == 0 ? random() : (uint64_t{1} << 63) + random() % 5 - 2);
    }
    for (int64_t& multiplier : batch.multipliers) multiplier = static_cast<int64_t>(random());
    batch.sizes = {1, kMaxHeadSize, kMaxHeadSize - 57, 2, 20000003, (int64_t{1} << 61) - 1};
    batch.offsets = {0, 1, kMaxHeadSize, 5, 6, 7};
    expect_reference(batch, HeldBatch(batch), 0, static_cast<int64_t>(batch.input_ids.size()));
  }
}

TEST(NgramIds, AnyNumberOfHeadsOfAnySize) {
  // Small and large divisors take different ways, and heads come in groups of four.
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    const int heads = 1 + round % 13;
    reference::Batch batch = random_batch(random, 3, heads, 2, 9, 0);
    for (int64_t& token : batch.input_ids) token = static_cast<int64_t>(random()) >> (random() % 64);
    for (int64_t& multiplier : batch.multipliers) multiplier = static_cast<int64_t>(random()) | 1;
    const int bits = round % 3 == 0 ? 30 : (round % 3 == 1 ? 31 : 62);
    for (int64_t& size : batch.sizes) {
      const int64_t most = std::min((int64_t{1} << bits) - (bits == 62 ? 0 : 1), kMaxHeadSize);
      size = random() % 3 == 0 ? most : 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    }
    if (round % 7 == 0) batch.sizes.back() = int64_t{1} << 31;
    if (round % 11 == 0) batch.sizes.front() = 1;
    expect_reference(batch, HeldBatch(batch), 0, static_cast<int64_t>(batch.input_ids.size()));
  }
}

TEST(NgramIds, NoRequestGivesIdsInRange) {
  reference::Batch batch = with_plan(3, 2);
  batch.input_ids = {1, 2, 3};
  batch.query_start_loc = {0};
  const HeldBatch held(batch);
  std::vector<int64_t> ids(12);
  cpu::Hasher(held.view).ids(0, 3, ids.data());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_GE(ids[i], batch.offsets[i % 4]);
    EXPECT_LT(ids[i], batch.offsets[i % 4] + batch.sizes[i % 4]);
  }
}

TEST(NgramIds, NothingToDo) {
  reference::Batch batch = with_plan(2, 1);
  batch.query_start_loc = {0};
  const HeldBatch held(batch);
  cpu::Hasher(held.view).ids(0, 0, nullptr);
}

}  // namespace
}  // namespace ngram_ple
