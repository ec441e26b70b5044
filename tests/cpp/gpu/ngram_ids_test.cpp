#include <gtest/gtest.h>

#include <limits>

#include "cpp/gpu/batches.h"
#include "cpp/gpu/output_log.h"
#include "gpu/launch.h"

namespace ngram_ple::test {
namespace {

std::vector<int64_t> run(const Batch& batch) {
  const DeviceBatch device(batch);
  const GuardedOutput out(static_cast<size_t>(batch.host.num_tokens * batch.host.num_heads()) * 8);
  gpu::ngram_ids(device.view(), reinterpret_cast<int64_t*>(out.data()), nullptr);
  EXPECT_TRUE(out.guards_intact());
  const auto bytes = out.take();
  log_output(bytes);
  std::vector<int64_t> ids(bytes.size() / 8);
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

void check(const BatchCase& what, uint64_t seed) {
  Random random(seed);
  const Batch batch = make_batch(what, random);
  EXPECT_EQ(run(batch), expected_ids(batch)) << "T " << what.tokens << " R " << what.requests << " N "
                                             << what.ngram_size << " K " << what.heads_per_ngram;
}

TEST(NgramIds, ShapesOfTheBatch) {
  uint64_t seed = 1;
  // Around one wave of 32 and of 64 boundaries, and far past both.
  for (int64_t requests : {1, 2, 5, 31, 32, 33, 63, 64, 65, 200, 1200}) {
    for (int64_t tokens : {1, 7, 33, 64}) {
      BatchCase what;
      what.tokens = tokens;
      what.requests = requests;
      what.padding = pick(*std::make_unique<Random>(seed), 0, tokens / 3);
      check(what, ++seed);
    }
  }
}

TEST(NgramIds, DecodeBatches) {
  for (int64_t requests : {1, 2, 32, 64, 100}) {
    Random random(static_cast<uint64_t>(requests));
    BatchCase what;
    what.tokens = requests;
    what.requests = requests;
    Batch batch = make_batch(what, random);
    for (size_t r = 0; r < batch.starts.values.size(); ++r) batch.starts.values[r] = static_cast<int64_t>(r);
    EXPECT_EQ(run(batch), expected_ids(batch)) << requests;
  }
}

TEST(NgramIds, OrdersAndHeads) {
  uint64_t seed = 100;
  for (int32_t ngram_size : {2, 3, 4, 5, 7, 40}) {
    for (int32_t heads : {1, 3, 8}) {
      BatchCase what;
      what.tokens = 45;
      what.requests = 6;
      what.ngram_size = ngram_size;
      what.heads_per_ngram = heads;
      what.spare_columns = heads % 3;
      check(what, ++seed);
    }
  }
}

// Large batches share the walk among four heads where K allows.
TEST(NgramIds, LargeBatches) {
  for (int32_t heads : {8, 4, 6}) {
    BatchCase what;
    what.tokens = 2100;
    what.requests = 40;
    what.heads_per_ngram = heads;
    check(what, static_cast<uint64_t>(200 + heads));
  }
}

TEST(NgramIds, IntegerTypes) {
  for (int mask = 0; mask < 8; ++mask) {
    BatchCase what;
    what.tokens = 20;
    what.requests = 4;
    what.int64_ids = mask & 1;
    what.int64_starts = mask & 2;
    what.int64_context = mask & 4;
    what.vocabulary = 1 << 20;
    check(what, static_cast<uint64_t>(300 + mask));
  }
}

TEST(NgramIds, HugeAndNegativeTokensWrap) {
  Random random(400);
  BatchCase what;
  what.tokens = 30;
  what.requests = 3;
  Batch batch = make_batch(what, random);
  for (int64_t& token : batch.ids.values) token = static_cast<int64_t>(random());
  for (int64_t& token : batch.context.values) token = static_cast<int64_t>(random());
  EXPECT_EQ(run(batch), expected_ids(batch));
}

TEST(NgramIds, HeadSizesUpToTwoToThe62) {
  for (int64_t largest : {int64_t{1}, int64_t{8191}, int64_t{20000003}, int64_t{1} << 31, int64_t{1} << 62}) {
    Random random(500);
    BatchCase what;
    what.tokens = 30;
    what.requests = 2;
    Batch batch = make_batch(what, random);
    for (int64_t& size : batch.sizes) size = largest - pick(random, 0, largest / 3);
    for (int64_t& offset : batch.offsets) offset = pick(random, 0, 1000);
    EXPECT_EQ(run(batch), expected_ids(batch)) << largest;
  }
}

TEST(NgramIds, NothingToDo) {
  BatchCase what;
  what.requests = 0;
  check(what, 600);
  what.requests = 3;
  check(what, 601);
}

// What only the GPU can see: the ids stay within their heads, and nothing is read past the arrays.
TEST(NgramIds, BoundariesThatLie) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Random random(700 + seed);
    BatchCase what;
    what.tokens = 40;
    what.requests = seed % 2 == 0 ? 5 : 90;
    if (seed == 6) what.requests = 40;
    if (seed == 7) what.requests = 0;
    Batch batch = make_batch(what, random);
    for (int64_t& start : batch.starts.values) {
      start = random() % 3 == 0 ? pick(random, -50, 90) : static_cast<int64_t>(random());
    }
    const auto ids = run(batch);
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t head = i % batch.sizes.size();
      EXPECT_GE(ids[i], batch.offsets[head]);
      EXPECT_LT(ids[i], batch.offsets[head] + batch.sizes[head]);
    }
  }
}

}  // namespace
}  // namespace ngram_ple::test
