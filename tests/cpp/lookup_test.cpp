// CPU lookup and embed: every format, output and head_dim against definitions, memory exactly sized.
#include "cpu/lookup.h"

#include <gtest/gtest.h>

#include "batches.h"
#include "tables.h"

namespace ngram_ple {
namespace {

using namespace testing_tables;
using testing_batches::HeldBatch;

void expect_lookup(const TableView& view, const std::vector<int64_t>& ids, bool is_int64, OutType out) {
  const testing_memory::ExactBytes held = testing_batches::integers(ids, is_int64);
  const size_t row_bytes = static_cast<size_t>(view.out_row_bytes(out));
  testing_memory::GuardedBytes result(ids.size() * row_bytes);
  const int64_t middle = static_cast<int64_t>(ids.size() / 3);  // two ranges, as two threads have them
  cpu::lookup({held.data(), is_int64}, view, out, 0, middle, result.data());
  cpu::lookup({held.data(), is_int64}, view, out, middle, static_cast<int64_t>(ids.size()),
              result.data() + static_cast<size_t>(middle) * row_bytes);
  ASSERT_TRUE(result.intact()) << name_of(view, out);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(same_row(result.data() + i * row_bytes, expected_row(view, ids[i], out), out))
        << name_of(view, out) << ", row " << ids[i];
  }
}

std::vector<int64_t> some_ids(std::mt19937_64& random, int64_t first, int64_t end, size_t count) {
  std::vector<int64_t> ids;
  for (size_t i = 0; i < count; ++i) {
    ids.push_back(first - 2 + static_cast<int64_t>(random() % static_cast<uint64_t>(end - first + 4)));
  }
  return ids;
}

class LookupTest : public testing::TestWithParam<Format> {};

TEST_P(LookupTest, EveryHeadDimFrom1To70) {
  std::mt19937_64 random(1);
  const int64_t step = GetParam() == Format::nvfp4 ? 16 : 1;
  for (int64_t head_dim = step; head_dim <= (step == 1 ? 70 : 272); head_dim += step) {
    for (Scales where : scale_places(GetParam())) {
      HeldTable table(GetParam(), head_dim, 19, random, where, 100);
      for (OutType out : kOutTypes) {
        expect_lookup(table.view, some_ids(random, 100, 119, 37), random() % 2 == 0, out);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(LookupTest, WideRows) {
  std::mt19937_64 random(2);
  for (int64_t head_dim : {160, 256, 257, 1024}) {
    if (GetParam() == Format::nvfp4 && head_dim % 16 != 0) continue;
    for (Scales where : scale_places(GetParam())) {
      HeldTable table(GetParam(), head_dim, 5, random, where);
      for (OutType out : kOutTypes) expect_lookup(table.view, some_ids(random, 0, 5, 40), true, out);
    }
  }
}

TEST_P(LookupTest, EveryCountAroundTheBlocks) {
  std::mt19937_64 random(3);
  HeldTable table(GetParam(), 32, 50, random);
  for (size_t count = 0; count <= 70; ++count) {
    expect_lookup(table.view, some_ids(random, 0, 50, count), count % 2 == 0, OutType::bf16);
  }
}

TEST_P(LookupTest, UnownedIdsAreZerosWithoutARead) {
  std::mt19937_64 random(4);
  HeldTable table(GetParam(), 48, 0, random, Scales::inside, 7);  // no row at all: any read is one too many
  for (OutType out : kOutTypes) {
    expect_lookup(table.view, {INT64_MIN, -1, 0, 6, 7, 8, INT64_MAX, int64_t{1} << 40}, true, out);
    expect_lookup(table.view, {INT32_MIN, -1, 0, 6, 7, 8, INT32_MAX}, false, out);
  }
}

std::string name_of_format(const testing::TestParamInfo<Format>& info) {
  std::string name = kFormatNames[static_cast<int>(info.param)];
  return name == "fp8-rowwise" ? "fp8_rowwise" : name;
}

INSTANTIATE_TEST_SUITE_P(Formats, LookupTest, testing::ValuesIn(kFormats), name_of_format);

class EmbedTest : public testing::TestWithParam<Format> {};

TEST_P(EmbedTest, IsLookupOfTheIds) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 24; ++round) {
    const int ngram_size = 2 + round % 3, heads = 1 + round % 4;
    const reference::Batch batch =
        testing_batches::random_batch(random, ngram_size, heads, 1 + round % 5, 7, 1);
    const HeldBatch held(batch, round % 8);
    int64_t rows = 0;
    for (int64_t size : batch.sizes) rows += size;
    HeldTable table(GetParam(), 16 * (1 + round % 3), rows - 9, random, Scales::inside,
                    4);  // both ends unowned
    for (OutType out : kOutTypes) {
      const size_t row_bytes = static_cast<size_t>(table.view.out_row_bytes(out));
      const size_t token_bytes = row_bytes * batch.sizes.size();
      testing_memory::GuardedBytes result(batch.input_ids.size() * token_bytes);
      const int64_t tokens = held.view.num_tokens, middle = tokens / 2;
      const cpu::Hasher hasher(held.view);
      cpu::embed(hasher, table.view, out, 0, middle, result.data());
      cpu::embed(hasher, table.view, out, middle, tokens,
                 result.data() + static_cast<size_t>(middle) * token_bytes);
      ASSERT_TRUE(result.intact());
      const std::vector<std::vector<int64_t>> ids = reference::ngram_ids(batch);
      for (size_t t = 0; t < ids.size(); ++t) {
        for (size_t h = 0; h < ids[t].size(); ++h) {
          ASSERT_TRUE(same_row(result.data() + t * token_bytes + h * row_bytes,
                               expected_row(table.view, ids[t][h], out), out))
              << name_of(table.view, out) << ", token " << t << ", head " << h;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EmbedTest, testing::ValuesIn(kFormats), name_of_format);

}  // namespace
}  // namespace ngram_ple
