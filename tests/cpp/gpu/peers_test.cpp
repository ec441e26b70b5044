// lookup and embed over a table that lies in blocks, against the rows of the whole table.
#include <gtest/gtest.h>

#include <memory>

#include "cpp/gpu/tables.h"
#include "gpu/launch.h"

namespace ngram_ple::test {
namespace {

constexpr Format kFormats[] = {Format::bf16, Format::fp16,        Format::fp32,
                               Format::fp8,  Format::fp8_rowwise, Format::nvfp4};

// The rows of a table in blocks of `rows_per_block`, each in memory of its own; the last ones may be empty.
class DeviceBlocks {
 public:
  DeviceBlocks(const Table& table, int64_t rows_per_block, int64_t count)
      : global_(std::vector<float>{table.what.global_scale}) {
    const size_t block_bytes = static_cast<size_t>(rows_per_block * table.row_stride);
    std::vector<const uint8_t*> begins;
    for (int64_t block = 0; block < count; ++block) {
      const size_t begin = std::min(table.rows.size(), static_cast<size_t>(block) * block_bytes);
      const size_t end = std::min(table.rows.size(), begin + block_bytes);
      const auto at = [&](size_t byte) { return table.rows.begin() + static_cast<std::ptrdiff_t>(byte); };
      memory_.push_back(
          std::make_unique<DeviceBuffer>(std::vector<uint8_t>(at(begin), at(end)), table.what.offset));
      begins.push_back(memory_.back()->data());
    }
    begins_ = std::make_unique<DeviceBuffer>(begins);
    view = table.view(begins[0], nullptr, global_.as<float>());
    blocks = {begins_->as<const uint8_t*>(), make_fast_div(static_cast<uint64_t>(rows_per_block))};
  }
  TableView view{};
  TableBlocks blocks{};

 private:
  DeviceBuffer global_;
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
  std::unique_ptr<DeviceBuffer> begins_;
};

std::vector<uint8_t> expected_rows(const Table& table, const std::vector<int64_t>& ids, OutType out) {
  const TableView view = table.view(table.rows.data(), nullptr, &table.what.global_scale);
  std::vector<uint8_t> bytes;
  for (int64_t id : ids) {
    const auto row = expected_row(view, id, out);
    bytes.insert(bytes.end(), row.begin(), row.end());
  }
  return bytes;
}

void check_lookup(const TableCase& what, int64_t rows_per_block, int64_t blocks, OutType type, int64_t count,
                  Random& random) {
  const Table table = make_table(what, random);
  const DeviceBlocks device(table, rows_per_block, blocks);
  HostInts ids;
  ids.is_int64 = random() % 2 == 0;
  for (int64_t i = 0; i < count; ++i) ids.values.push_back(pick(random, -2, what.rows + 1));
  const DeviceBuffer device_ids(ids.bytes());
  const auto wanted = expected_rows(table, ids.values, type);
  const GuardedOutput out(wanted.size());
  gpu::lookup_peers({device_ids.data(), ids.is_int64}, count, device.view, device.blocks, type, out.data(),
                    nullptr);
  EXPECT_TRUE(out.guards_intact());
  EXPECT_EQ(first_difference(out.take(), wanted, type), -1)
      << kFormatNames[static_cast<int>(what.format)] << " -> " << kOutTypeNames[static_cast<int>(type)];
}

TEST(LookupPeers, EveryFormatAndOutput) {
  Random random(1);
  for (Format format : kFormats) {
    for (OutType type : {OutType::bf16, OutType::fp16, OutType::fp32, OutType::bytes}) {
      TableCase what;
      what.format = format;
      what.head_dim = 32;
      what.rows = 50;
      for (int64_t count : {37, 4101})
        check_lookup(what, 17, 4, type, count, random);  // a row a wave; staged
    }
  }
}

TEST(LookupPeers, BlocksOfEverySize) {
  Random random(2);
  for (int64_t rows_per_block : {1, 2, 7, 25, 49, 50, 51, 1000}) {
    TableCase what;
    what.head_dim = 7;  // scalar codec
    what.rows = 50;
    what.offset = static_cast<size_t>(rows_per_block % 3);
    check_lookup(what, rows_per_block, (50 + rows_per_block - 1) / rows_per_block, OutType::fp32, 60, random);
  }
}

TEST(EmbedPeers, AgreesWithIdsThenRows) {
  Random random(3);
  for (Format format : kFormats) {
    for (int64_t tokens : {9, 260}) {
      BatchCase shape;
      shape.tokens = tokens;
      shape.requests = 3;
      shape.largest_head = 20;
      const Batch batch = make_batch(shape, random);
      TableCase what;
      what.format = format;
      what.rows = batch.rows;
      const Table table = make_table(what, random);
      const DeviceBatch device_batch(batch);
      const DeviceBlocks device(table, (batch.rows + 2) / 3, 3);
      const auto wanted = expected_rows(table, expected_ids(batch), OutType::bf16);
      const GuardedOutput out(wanted.size());
      gpu::embed_peers(device_batch.view(), device.view, device.blocks, OutType::bf16, out.data(), nullptr);
      EXPECT_TRUE(out.guards_intact());
      EXPECT_EQ(first_difference(out.take(), wanted, OutType::bf16), -1);
    }
  }
}

}  // namespace
}  // namespace ngram_ple::test
