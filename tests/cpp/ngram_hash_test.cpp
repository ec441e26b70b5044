// The walk of core/ngram_hash.h, step by step on small cases worked by hand.
#include "core/ngram_hash.h"

#include <gtest/gtest.h>

#include "batches.h"

namespace ngram_ple {
namespace {

using testing_batches::HeldBatch;

// N 4; multipliers 1, 100, 10000, 1000000 would mix digits; XOR of tokens below 8 in separate bit groups
// shows them.
reference::Batch transparent() {
  reference::Batch batch;
  batch.multipliers = {1, 1 << 4, 1 << 8, 1 << 12};
  batch.sizes = {1, 1, 1};
  batch.offsets = {0, 0, 0};
  batch.eos = 9;
  return batch;
}

// The mixed value of the longest n-gram: one hexadecimal digit a token, the newest lowest.
int64_t history(const reference::Batch& batch, int64_t t) {
  const HeldBatch held(batch);
  const int64_t request = find_request(held.view, t);
  int64_t last = -1;
  int32_t visits = 0;
  for_each_ngram(held.view, request, chunk_position(held.view, request, t), t,
                 [&](int32_t order, int64_t mixed) {
                   EXPECT_EQ(order, ++visits + 1);
                   last = mixed;
                 });
  EXPECT_EQ(visits, 3);
  return last;
}

TEST(NgramWalk, TakesContextThenChunk) {
  reference::Batch batch = transparent();
  batch.input_ids = {4, 5, 6, 7};
  batch.query_start_loc = {0, 4};
  batch.contexts = {{1, 2, 3}};
  EXPECT_EQ(history(batch, 0), 0x1234);
  EXPECT_EQ(history(batch, 1), 0x2345);
  EXPECT_EQ(history(batch, 2), 0x3456);
  EXPECT_EQ(history(batch, 3), 0x4567);
}

TEST(NgramWalk, EosCutsWhatIsOlderButNotItself) {
  reference::Batch batch = transparent();
  batch.input_ids = {4, 9, 5, 6};
  batch.query_start_loc = {0, 4};
  batch.contexts = {{1, 2, 3}};
  EXPECT_EQ(history(batch, 1), 0x2349);  // the current token is EOS: its own history stays
  EXPECT_EQ(history(batch, 2), 0x9995);
  EXPECT_EQ(history(batch, 3), 0x9956);
}

TEST(NgramWalk, EosInTheContextCutsToo) {
  reference::Batch batch = transparent();
  batch.input_ids = {4, 5};
  batch.query_start_loc = {0, 2};
  batch.contexts = {{1, 9, 3}};
  EXPECT_EQ(history(batch, 0), 0x9934);
  EXPECT_EQ(history(batch, 1), 0x9345);
  batch.contexts = {{1, 2, 9}};
  EXPECT_EQ(history(batch, 0), 0x9994);
  EXPECT_EQ(history(batch, 1), 0x9945);
}

TEST(NgramWalk, NeverCrossesARequest) {
  reference::Batch batch = transparent();
  batch.input_ids = {1, 2, 3, 4};
  batch.query_start_loc = {0, 0, 2, 2, 4, 4};  // empty ones first, between and last
  batch.contexts = {{7, 7, 7}, {5, 5, 5}, {7, 7, 7}, {6, 6, 6}, {7, 7, 7}};
  EXPECT_EQ(history(batch, 0), 0x5551);
  EXPECT_EQ(history(batch, 1), 0x5512);
  EXPECT_EQ(history(batch, 2), 0x6663);
  EXPECT_EQ(history(batch, 3), 0x6634);
}

TEST(NgramWalk, FindRequest) {
  reference::Batch batch = transparent();
  batch.input_ids.assign(9, 1);
  batch.query_start_loc = {0, 0, 3, 3, 7};
  batch.contexts.assign(4, {1, 1, 1});
  const HeldBatch held(batch);
  const int64_t expected[] = {1, 1, 1, 3, 3, 3, 3, 3, 3};  // 7 and 8 are padding: the last request's
  for (int64_t t = 0; t < 9; ++t) EXPECT_EQ(find_request(held.view, t), expected[t]) << t;
}

TEST(NgramWalk, NoRequestAtAllReadsNoContext) {
  reference::Batch batch = transparent();
  batch.input_ids = {4, 5};
  batch.query_start_loc = {0};
  const HeldBatch held(batch);  // a context of no bytes: ASan would see a read
  EXPECT_EQ(find_request(held.view, 1), -1);
  EXPECT_EQ(history(batch, 1), 0x9995);
}

TEST(NgramWalk, WildBoundariesStayInside) {
  reference::Batch batch = transparent();
  batch.input_ids = {1, 2, 3};
  batch.contexts = {{5, 5, 5}, {6, 6, 6}};
  for (int64_t wild : {INT64_MIN, int64_t{-5}, int64_t{2}, int64_t{1000}, INT64_MAX}) {
    batch.query_start_loc = {wild, wild, wild};
    const HeldBatch held(batch);
    for (int64_t t = 0; t < 3; ++t) {
      const int64_t request = find_request(held.view, t);
      const int64_t position = chunk_position(held.view, request, t);
      ASSERT_GE(position, 0) << wild;
      ASSERT_LE(position, t) << wild;
      history(batch, t);
    }
  }
}

TEST(NgramWalk, ProductsWrap) {
  EXPECT_EQ(wrapping_product(INT64_MIN, 3), uint64_t{1} << 63);
  EXPECT_EQ(wrapping_product(-1, -1), 1u);
  EXPECT_EQ(wrapping_product(INT64_MAX, INT64_MAX), 1u);
}

}  // namespace
}  // namespace ngram_ple
