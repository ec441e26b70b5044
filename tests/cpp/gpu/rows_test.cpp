// lookup, embed and decode over every format and output, against csrc/core's arithmetic.
#include <gtest/gtest.h>

#include <sstream>

#include "cpp/gpu/tables.h"
#include "gpu/launch.h"

namespace ngram_ple::test {
namespace {

constexpr Format kFormats[] = {Format::bf16, Format::fp16,        Format::fp32,
                               Format::fp8,  Format::fp8_rowwise, Format::nvfp4};
constexpr OutType kOuts[] = {OutType::bf16, OutType::fp16, OutType::fp32, OutType::bytes};

bool exists(Format format, int64_t head_dim) {
  return format != Format::nvfp4 || head_dim % kBlockElements == 0;
}

std::string describe(const TableCase& what, OutType out) {
  std::ostringstream text;
  text << kFormatNames[static_cast<int>(what.format)] << " -> " << kOutTypeNames[static_cast<int>(out)]
       << ", head_dim " << what.head_dim << ", offset " << what.offset << ", spare " << what.spare_bytes
       << ", apart " << what.scales_apart << ", bf16 scales " << what.scale_is_bf16;
  return text.str();
}

std::vector<uint8_t> expected_rows(const Table& table, const std::vector<int64_t>& ids, OutType out) {
  const TableView view = table.view(table.rows.data(), table.scales.data(), &table.what.global_scale);
  std::vector<uint8_t> bytes;
  for (int64_t id : ids) {
    const auto row = expected_row(view, id, out);
    bytes.insert(bytes.end(), row.begin(), row.end());
  }
  return bytes;
}

void check_output(const GuardedOutput& out, const std::vector<uint8_t>& wanted, OutType type,
                  const std::string& name) {
  EXPECT_TRUE(out.guards_intact()) << name;
  EXPECT_EQ(first_difference(out.take(), wanted, type), -1) << name;
}

void check_lookup(const TableCase& what, OutType type, const HostInts& ids, Random& random,
                  size_t out_offset = 0) {
  const Table table = make_table(what, random);
  const DeviceTable device(table);
  const DeviceBuffer device_ids(ids.bytes());
  const auto wanted = expected_rows(table, ids.values, type);
  const GuardedOutput out(wanted.size(), out_offset);
  gpu::lookup({device_ids.data(), ids.is_int64}, static_cast<int64_t>(ids.values.size()), device.view(), type,
              out.data(), nullptr);
  check_output(out, wanted, type, describe(what, type));
}

HostInts some_ids(Random& random, int64_t count, int64_t low, int64_t high) {
  HostInts ids;
  ids.is_int64 = random() % 2 == 0;
  for (int64_t i = 0; i < count; ++i) ids.values.push_back(pick(random, low, high));
  return ids;
}

TEST(Lookup, EveryFormatOutputAndWidth) {
  Random random(1);
  for (Format format : kFormats) {
    for (OutType type : kOuts) {
      for (int64_t head_dim : {1, 7, 16, 64, 100, 160, 257}) {
        if (!exists(format, head_dim)) continue;
        TableCase what;
        what.format = format;
        what.head_dim = head_dim;
        what.rows = 23;
        what.row_start = 5;
        check_lookup(what, type, some_ids(random, 37, 0, 32), random);
      }
    }
  }
}

TEST(Lookup, UnalignedRowsAndOutputs) {
  Random random(2);
  for (Format format : kFormats) {
    for (OutType type : kOuts) {
      for (size_t offset : {1, 2, 4, 8}) {
        TableCase what;
        what.format = format;
        what.head_dim = 64;
        what.rows = 9;
        what.offset = offset;
        const size_t width = static_cast<size_t>(out_element_bytes(type));
        check_lookup(what, type, some_ids(random, 11, 0, 8), random, offset % width == 0 ? offset : width);
        what.offset = 0;
        what.spare_bytes = static_cast<int64_t>(offset);
        check_lookup(what, type, some_ids(random, 11, 0, 8), random);
      }
    }
  }
}

TEST(Lookup, ScalesApart) {
  Random random(3);
  for (Format format : {Format::fp8_rowwise, Format::nvfp4}) {
    for (OutType type : kOuts) {
      for (bool bf16 : {false, true}) {
        if (bf16 && format != Format::fp8_rowwise) continue;
        TableCase what;
        what.format = format;
        what.rows = 20;
        what.scales_apart = true;
        what.scale_is_bf16 = bf16;
        check_lookup(what, type, some_ids(random, 30, -3, 25), random);
      }
    }
  }
}

TEST(Lookup, RowsThatNobodyOwnsAreZeroAndUnread) {
  Random random(4);
  for (Format format : kFormats) {
    for (OutType type : kOuts) {
      TableCase what;
      what.format = format;
      what.rows = 0;
      what.row_start = 1000;
      what.global_scale = -NAN;
      HostInts ids = some_ids(random, 20, -5, 2000);
      ids.is_int64 = true;
      ids.values.push_back(std::numeric_limits<int64_t>::min());
      ids.values.push_back(std::numeric_limits<int64_t>::max());
      check_lookup(what, type, ids, random);
      what.rows = 500;
      check_lookup(what, type, ids, random);
    }
  }
}

TEST(Lookup, Counts) {
  Random random(5);
  for (int64_t count : {0, 1, 2, 15, 16, 17, 33, 4096, 4097}) {
    TableCase what;
    what.head_dim = 8;
    check_lookup(what, OutType::bf16, some_ids(random, count, 0, 99), random);
  }
}

// Past the few rows (4096) that take a wave each: staged, and such as cannot be.
TEST(Lookup, ManyRows) {
  Random random(9);
  for (Format format : kFormats) {
    for (OutType type : kOuts) {
      // Left out: what runs the very code of another case.
      const bool same_copy = format <= Format::fp32 && type == OutType::bytes;
      if (same_copy || (format == Format::fp16 && type != OutType::bf16)) continue;
      if (format != Format::fp32 && type == OutType::fp16) continue;
      TableCase what;
      what.format = format;
      what.head_dim = 32;
      what.rows = 70;
      what.row_start = 10;
      check_lookup(what, type, some_ids(random, 4101, 0, 90), random);
    }
  }
  TableCase odd;
  odd.head_dim = 9;
  check_lookup(odd, OutType::fp32, some_ids(random, 4101, 0, 99), random);
  TableCase apart;
  apart.format = Format::nvfp4;
  apart.head_dim = 16;
  apart.scales_apart = true;
  check_lookup(apart, OutType::bf16, some_ids(random, 4101, 0, 99), random);
}

// So many that a wave takes as many rows as it has lanes.
TEST(Lookup, MostRowsAWave) {
  Random random(12);
  TableCase what;
  what.format = Format::nvfp4;
  what.head_dim = 16;
  what.row_start = 3;
  check_lookup(what, OutType::bf16, some_ids(random, 66'001, 3, 102), random);  // all owned
  check_lookup(what, OutType::bf16, some_ids(random, 66'001, 0, 110), random);
}

TEST(Lookup, PinnedTable) {
  Random random(11);
  for (Format format : kFormats) {
    for (int64_t count : {20, 4100}) {
      TableCase what;
      what.format = format;
      what.head_dim = 32;
      what.placement = Placement::pinned;
      check_lookup(what, OutType::bf16, some_ids(random, count, -1, 99), random);
    }
  }
}

TEST(Embed, ManyRows) {
  for (Format format : {Format::bf16, Format::fp8, Format::fp8_rowwise, Format::nvfp4}) {
    Random random(10);
    BatchCase shape;
    shape.tokens = 260;
    shape.requests = 7;
    shape.padding = 3;
    shape.largest_head = 20;
    const Batch batch = make_batch(shape, random);
    TableCase what;
    what.format = format;
    what.row_start = batch.rows / 5;
    what.rows = batch.rows / 2;
    const Table table = make_table(what, random);
    const DeviceBatch device_batch(batch);
    const DeviceTable device_table(table);
    const auto wanted = expected_rows(table, expected_ids(batch), OutType::bf16);
    const GuardedOutput out(wanted.size());
    gpu::embed(device_batch.view(), device_table.view(), OutType::bf16, out.data(), nullptr);
    check_output(out, wanted, OutType::bf16, describe(what, OutType::bf16));
  }
}

TEST(Embed, AgreesWithIdsThenRows) {
  Random random(6);
  for (Format format : kFormats) {
    for (OutType type : kOuts) {
      for (int64_t head_dim : {7, 64, 160}) {
        if (!exists(format, head_dim)) continue;
        BatchCase shape;
        shape.tokens = pick(random, 1, 9);
        shape.requests = pick(random, 1, 5);
        shape.heads_per_ngram = static_cast<int32_t>(pick(random, 1, 8));
        shape.largest_head = 20;
        const Batch batch = make_batch(shape, random);
        TableCase what;
        what.format = format;
        what.head_dim = head_dim;
        what.row_start = batch.rows / 4;
        what.rows = batch.rows / 2;
        const Table table = make_table(what, random);
        const DeviceBatch device_batch(batch);
        const DeviceTable device_table(table);
        const auto wanted = expected_rows(table, expected_ids(batch), type);
        const GuardedOutput out(wanted.size());
        gpu::embed(device_batch.view(), device_table.view(), type, out.data(), nullptr);
        check_output(out, wanted, type, describe(what, type));
      }
    }
  }
}

TEST(Embed, NothingToDo) {
  Random random(7);
  BatchCase shape;
  shape.requests = 2;
  const DeviceBatch batch(make_batch(shape, random));
  const DeviceTable table(make_table({}, random));
  gpu::embed(batch.view(), table.view(), OutType::bf16, nullptr, nullptr);
}

// 16 rows of 256 values: every fp8 code in every row, every nvfp4 code under each of the 256 block scales.
TEST(Decode, EveryCodeUnderManyScales) {
  for (Format format : {Format::fp8, Format::fp8_rowwise, Format::nvfp4}) {
    for (OutType type : {OutType::bf16, OutType::fp16, OutType::fp32}) {
      for (float scale : {1.0f, -0.37f, 1e-5f, 3e-39f, 1e30f, 3e38f, INFINITY, NAN, 0.0f}) {
        Random random(8);
        TableCase what;
        what.format = format;
        what.head_dim = 256;
        what.rows = 16;
        what.global_scale = scale;
        Table table = make_table(what, random);
        for (size_t row = 0; row < 16; ++row) {
          uint8_t* bytes = &table.rows[row * static_cast<size_t>(table.row_stride)];
          if (format == Format::nvfp4) {
            for (size_t i = 0; i < 128; ++i)
              bytes[i] = static_cast<uint8_t>((2 * i) % 16 | (2 * i + 1) % 16 << 4);
            for (size_t block = 0; block < 16; ++block)
              bytes[128 + block] = static_cast<uint8_t>(16 * row + block);
            continue;
          }
          for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(row + i);
          if (format == Format::fp8_rowwise) std::memcpy(bytes + 256, &scale, 4);
        }
        const DeviceTable device(table);
        std::vector<int64_t> every(16);
        for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<int64_t>(i);
        const auto wanted = expected_rows(table, every, type);
        const GuardedOutput out(wanted.size());
        gpu::decode(device.view(), 16, type, out.data(), nullptr);
        check_output(out, wanted, type, describe(what, type));
      }
    }
  }
}

}  // namespace
}  // namespace ngram_ple::test
