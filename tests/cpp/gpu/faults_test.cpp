#include "gpu/faults.h"

#include <gtest/gtest.h>

#include "cpp/gpu/batches.h"

namespace ngram_ple::test {
namespace {

std::string fault_of_bounds(const std::vector<int64_t>& starts, int64_t tokens) {
  Random random(5);
  BatchCase what;
  what.tokens = tokens;
  what.requests = static_cast<int64_t>(starts.size()) - 1;
  Batch batch = make_batch(what, random);
  batch.starts.values = starts;
  const DeviceBatch device(batch);
  try {
    gpu::check_batch("ngram_ids", device.view(), nullptr);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

std::string fault_of_ids(const std::vector<int32_t>& ids, bool whole) {
  const DeviceBuffer device(ids);
  TableView table{};
  table.row_end = 10;
  try {
    gpu::check_ids("lookup", {device.data(), false}, static_cast<int64_t>(ids.size()), table, whole, nullptr);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Faults, GoodBoundariesPass) {
  EXPECT_EQ(fault_of_bounds({0, 3, 3, 7}, 7), "");
  EXPECT_EQ(fault_of_bounds({0, 3, 5}, 9), "");  // padding behind the last request
  EXPECT_EQ(fault_of_bounds({0}, 0), "");
}

TEST(Faults, BadBoundariesAreNamedOnce) {
  EXPECT_EQ(fault_of_bounds({1, 3, 7}, 7), "ngram_ids: query_start_loc must start at 0, got 1");
  EXPECT_EQ(fault_of_bounds({0, 5, 3, 7}, 7),
            "ngram_ids: query_start_loc must not decrease, got 5 then 3 at index 2");
  EXPECT_EQ(fault_of_bounds({0, 3, 8}, 7), "ngram_ids: query_start_loc must end within input_ids [7], got 8");
  EXPECT_EQ(fault_of_bounds({0}, 4), "ngram_ids: query_start_loc names no request for 4 tokens");
  EXPECT_EQ(fault_of_bounds({0, 7}, 7), "");
}

TEST(Faults, AFaultFarIntoALargeBatchIsFound) {
  std::vector<int64_t> starts;
  for (int64_t r = 0; r <= 5000; ++r) starts.push_back(r);
  starts[4321] = 17;
  EXPECT_EQ(fault_of_bounds(starts, 5000),
            "ngram_ids: query_start_loc must not decrease, got 4320 then 17 at index 4321");
}

TEST(Faults, IdsAreHeldAgainstAWholeTableOnly) {
  EXPECT_EQ(fault_of_ids({0, 9, -1, 3}, true), "");
  EXPECT_EQ(fault_of_ids({0, 10}, true), "lookup: ids must be -1 or within 0..9, got 10 at index 1");
  EXPECT_EQ(fault_of_ids({0, 10, 1 << 30}, false), "");
  EXPECT_NE(fault_of_ids({-2}, false), "");
}

}  // namespace
}  // namespace ngram_ple::test
