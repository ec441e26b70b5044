// Every way to look rows up in pinned memory gives the bits of gpu::lookup.
#include "gpu/pinned_reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "cpp/gpu/tables.h"

namespace ngram_ple::test {
namespace {

constexpr Format kFormats[] = {Format::bf16, Format::fp16,        Format::fp32,
                               Format::fp8,  Format::fp8_rowwise, Format::nvfp4};
constexpr int64_t kMany = gpu::kListedWhole + 100;
constexpr gpu::Way kWays[] = {gpu::Way::zero_copy, gpu::Way::ordered, gpu::Way::staged};

TableCase pinned_case(Format format, int64_t head_dim, int64_t rows, int64_t row_start = 0) {
  TableCase what;
  what.format = format;
  what.head_dim = head_dim;
  what.rows = rows;
  what.row_start = row_start;
  what.placement = Placement::pinned;
  return what;
}

// A table in pinned memory, its reader, and what that should give.
class Fixture {
 public:
  Fixture(const TableCase& what, int64_t max_ids, int threads = 2, RowStager::Gather gather = &gather_rows,
          uint32_t patience = 1'000'000'000)
      : options{max_ids, threads, gather, patience},
        random(7),
        table(make_table(what, random)),
        on_device(table),
        device_memory(static_cast<size_t>(gpu::PinnedReader::device_bytes(table.format, options))),
        pinned_memory(static_cast<size_t>(gpu::PinnedReader::pinned_bytes(table.format, options)) + 128, 0,
                      Placement::pinned),
        reader(std::make_unique<gpu::PinnedReader>(on_device.view(), options, device_memory.data(),
                                                   aligned(pinned_memory.data()), nullptr)) {}
  ~Fixture() {
    wait();
    reader.reset();
  }

  std::vector<uint8_t> look_up(const HostInts& ids, OutType out_type, gpu::Way way, int sms = 0) {
    const DeviceBuffer device_ids(ids.bytes());
    const int64_t count = static_cast<int64_t>(ids.values.size());
    const GuardedOutput out(static_cast<size_t>(count * on_device.view().out_row_bytes(out_type)));
    reader->lookup({device_ids.data(), ids.is_int64}, count, on_device.view(), out_type, out.data(), way, sms,
                   nullptr, 0);
    EXPECT_TRUE(out.guards_intact());
    return out.take();
  }

  // In two halves, as a prefetch does it: rows come as they are stored, then are decoded.
  std::vector<uint8_t> bring(const HostInts& ids, OutType out_type) {
    const DeviceBuffer device_ids(ids.bytes());
    const int64_t count = static_cast<int64_t>(ids.values.size());
    TableView view = on_device.view();
    const DeviceBuffer places(static_cast<size_t>(count) * 4),
        rows(static_cast<size_t>(count * view.format.slot_bytes));
    reader->bring({device_ids.data(), ids.is_int64}, count, places.as<int32_t>(), rows.data(), nullptr,
                  nullptr, 0);
    view.rows = rows.data();
    view.row_stride = view.format.slot_bytes;
    view.scales = view.format.scale_bytes == 0 ? nullptr : rows.data() + view.format.scale_offset;
    view.row_start = 0;
    view.row_end = count;
    const GuardedOutput out(static_cast<size_t>(count * view.out_row_bytes(out_type)));
    gpu::lookup({places.data(), false}, count, view, out_type, out.data(), nullptr);
    EXPECT_TRUE(out.guards_intact());
    return out.take();
  }

  std::vector<uint8_t> expected(const HostInts& ids, OutType out_type) const {
    const TableView view = table.view(table.rows.data(), table.scales.data(), &table.what.global_scale);
    std::vector<uint8_t> bytes;
    for (int64_t id : ids.values) {
      const auto row = expected_row(view, id, out_type);
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
    return bytes;
  }

  HostInts some_ids(int64_t count, int64_t low, int64_t high) {
    HostInts ids;
    ids.is_int64 = random() % 2 == 0;
    for (int64_t i = 0; i < count; ++i) ids.values.push_back(pick(random, low, high));
    return ids;
  }

  void wait() {
    uint8_t byte;
    copy_to_host(&byte, device_memory.data(), 1);
  }

 private:
  static uint8_t* aligned(uint8_t* memory) {
    return memory + (128 - reinterpret_cast<uintptr_t>(memory) % 128) % 128;
  }

 public:
  gpu::ReaderOptions options;
  Random random;
  Table table;
  DeviceTable on_device;
  DeviceBuffer device_memory, pinned_memory;
  std::unique_ptr<gpu::PinnedReader> reader;
};

TEST(PinnedReader, EveryFormatOutputAndWay) {
  for (Format format : kFormats) {
    for (int64_t head_dim : {100, 160}) {
      if (format == Format::nvfp4 && head_dim % kBlockElements != 0) continue;
      Fixture fixture(pinned_case(format, head_dim, 500, 30), kMany);
      for (OutType out_type : {OutType::bf16, OutType::bytes}) {
        for (int64_t count : {int64_t{200}, kMany}) {
          const bool chosen = format == Format::fp8 || format == Format::nvfp4;
          if (count == kMany && !(chosen && head_dim == 160 && out_type == OutType::bf16))
            continue;                                             // takes long
          const HostInts ids = fixture.some_ids(count, 20, 540);  // with repeats, and some that nobody owns
          const auto wanted = fixture.expected(ids, out_type);
          for (gpu::Way way : kWays) {
            EXPECT_EQ(first_difference(fixture.look_up(ids, out_type, way), wanted, out_type), -1)
                << kFormatNames[static_cast<int>(format)] << " " << head_dim << " way "
                << static_cast<int>(way) << " count " << count;
          }
        }
      }
    }
  }
}

TEST(PinnedReader, BroughtRowsAreTheSame) {
  for (Format format : kFormats) {
    Fixture fixture(pinned_case(format, format == Format::fp8_rowwise ? 156 : 160, 500, 30), 600);
    for (OutType out_type : {OutType::bf16, OutType::bytes}) {
      const HostInts ids = fixture.some_ids(200, 20, 540);
      EXPECT_EQ(first_difference(fixture.bring(ids, out_type), fixture.expected(ids, out_type), out_type), -1)
          << kFormatNames[static_cast<int>(format)];
    }
  }
}

TEST(PinnedReader, BroughtInOnePieceOrMany) {
  Fixture fixture(pinned_case(Format::fp32, 160, 20000), 20000, 3);
  int64_t batches = 0;
  for (int64_t count : {1, 31, 32, 33, 1000, 20000}) {
    for (int64_t high : {0, 19999}) {  // of the second, whole pieces have no rows
      const HostInts ids = fixture.some_ids(count, 0, high);
      EXPECT_EQ(first_difference(fixture.bring(ids, OutType::bf16), fixture.expected(ids, OutType::bf16),
                                 OutType::bf16),
                -1)
          << count << " " << high;
      const HostInts others = fixture.some_ids(100, 0, 19999);  // by chunks, in between
      EXPECT_EQ(first_difference(fixture.look_up(others, OutType::bf16, gpu::Way::staged),
                                 fixture.expected(others, OutType::bf16), OutType::bf16),
                -1);
      batches += 2;
    }
  }
  fixture.wait();
  EXPECT_EQ(fixture.reader->counters().batches.batches, static_cast<uint64_t>(batches));
}

TEST(PinnedReader, CountsFromNoneToManyParts) {
  Fixture fixture(pinned_case(Format::fp8, 160, 3000), 1000);
  for (int64_t count : {0, 1, 31, 32, 33, 999, 1000, 1001, 3500}) {
    const HostInts ids = fixture.some_ids(count, 0, 2999);
    for (gpu::Way way : kWays) {
      EXPECT_EQ(first_difference(fixture.look_up(ids, OutType::bf16, way),
                                 fixture.expected(ids, OutType::bf16), OutType::bf16),
                -1)
          << count;
    }
  }
}

TEST(PinnedReader, SmallBatchesAreListedWhole) {
  Fixture fixture(pinned_case(Format::fp8, 32, 100), kMany);
  uint64_t rows = 0;
  for (int64_t count : {int64_t{1}, int64_t{1024}, gpu::kListedWhole}) {
    HostInts ids = fixture.some_ids(count, 17, 17);
    if (count > 1) ids.values[5] = 100;
    EXPECT_EQ(first_difference(fixture.look_up(ids, OutType::bf16, gpu::Way::staged),
                               fixture.expected(ids, OutType::bf16), OutType::bf16),
              -1);
    rows += static_cast<uint64_t>(count > 1 ? count - 1 : count);
  }
  const HostInts none = fixture.some_ids(50, 100, 200);
  EXPECT_EQ(first_difference(fixture.look_up(none, OutType::bf16, gpu::Way::staged),
                             fixture.expected(none, OutType::bf16), OutType::bf16),
            -1);
  fixture.wait();
  EXPECT_EQ(fixture.reader->counters().batches.rows, rows);
}

TEST(PinnedReader, RepeatedRowsCountOnce) {
  Fixture fixture(pinned_case(Format::nvfp4, 32, 100), kMany);
  HostInts ids = fixture.some_ids(kMany, 17, 17);
  ids.values[5] = -1;
  for (gpu::Way way : {gpu::Way::ordered, gpu::Way::staged}) {
    EXPECT_EQ(first_difference(fixture.look_up(ids, OutType::bf16, way), fixture.expected(ids, OutType::bf16),
                               OutType::bf16),
              -1);
  }
  fixture.wait();
  const gpu::ReaderCounters counters = fixture.reader->counters();
  EXPECT_EQ(counters.batches.batches, 2u);
  EXPECT_EQ(counters.batches.ids, uint64_t{2 * kMany});
  EXPECT_EQ(counters.batches.rows, 2u);
  EXPECT_LE(counters.batches.rows_by_gpu, 2u);
  EXPECT_EQ(counters.stager.failed_batches, 0);
}

TEST(PinnedReader, FewMultiprocessors) {
  Fixture fixture(pinned_case(Format::bf16, 64, 700), 2000);
  const HostInts ids = fixture.some_ids(2000, -3, 705);
  for (gpu::Way way : kWays) {
    EXPECT_EQ(first_difference(fixture.look_up(ids, OutType::bf16, way, 1),
                               fixture.expected(ids, OutType::bf16), OutType::bf16),
              -1);
  }
}

TEST(PinnedReader, WithoutThreadsThereIsNoStagedWay) {
  Fixture fixture(pinned_case(Format::bf16, 64, 50), 64, 0);
  const HostInts ids = fixture.some_ids(64, 0, 49);
  EXPECT_EQ(first_difference(fixture.look_up(ids, OutType::bf16, gpu::Way::ordered),
                             fixture.expected(ids, OutType::bf16), OutType::bf16),
            -1);
  EXPECT_THROW(fixture.look_up(ids, OutType::bf16, gpu::Way::staged), std::runtime_error);
}

void fail(const GatherPart&) { throw std::runtime_error("injected"); }

TEST(PinnedReader, AFailedWorkerGivesNaNAndIsToldByTheNextCall) {
  for (Format format : kFormats) {
    Fixture fixture(pinned_case(format, 160, 500), kMany, 2, &fail);
    const HostInts ids = fixture.some_ids(format == Format::fp8 ? kMany : 1000, 0, 499);
    const auto got = fixture.look_up(ids, OutType::fp32, gpu::Way::staged);
    for (size_t at = 0; at < got.size(); at += 4) {
      float value;
      std::memcpy(&value, &got[at], 4);
      ASSERT_TRUE(std::isnan(value)) << kFormatNames[static_cast<int>(format)] << " " << at;
    }
    try {
      fixture.look_up(ids, OutType::fp32, gpu::Way::staged);
      FAIL() << "the failure was not told";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(),
                   "pinned_lookup: a worker failed in an earlier lookup, whose rows are NaN: injected");
    }
    EXPECT_EQ(fixture.reader->counters().stager.failed_batches, 1);
  }
}

TEST(PinnedReader, AFailedWorkerSpoilsWhatIsBrought) {
  Fixture fixture(pinned_case(Format::nvfp4, 160, 500), 1024, 2, &fail);
  const HostInts ids = fixture.some_ids(1000, 0, 499);
  const auto got = fixture.bring(ids, OutType::fp32);
  for (size_t at = 0; at < got.size(); at += 4) {
    float value;
    std::memcpy(&value, &got[at], 4);
    ASSERT_TRUE(std::isnan(value)) << at;
  }
  EXPECT_THROW(fixture.bring(ids, OutType::fp32), std::runtime_error);
  EXPECT_THROW(Fixture(pinned_case(Format::bf16, 64, 50), 64, 0).bring(ids, OutType::bf16),
               std::runtime_error);
}

// The patience of users: nobody waits for workers that sleep.
TEST(PinnedReader, SleepingWorkersAreNotWaitedFor) {
  Fixture fixture(pinned_case(Format::nvfp4, 160, 500), kMany, 2, &gather_rows, 0);
  for (int64_t count : {int64_t{1000}, kMany}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const HostInts ids = fixture.some_ids(count, 0, 499);
    EXPECT_EQ(first_difference(fixture.look_up(ids, OutType::bf16, gpu::Way::staged),
                               fixture.expected(ids, OutType::bf16), OutType::bf16),
              -1);
    fixture.wait();
    const BatchTotals totals = fixture.reader->counters().batches;
    if (count != kMany) {
      EXPECT_EQ(totals.rows_by_gpu, totals.rows);  // and nobody wakes them for so few
    }
  }
}

void sleep_long(const GatherPart& part) {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  gather_rows(part);
}

TEST(PinnedReader, WorkersThatComeTooLateAreNotWaitedFor) {
  Fixture fixture(pinned_case(Format::fp8, 32, 500), kMany, 1, &sleep_long, 50'000);
  for (int64_t count : {int64_t{2048}, kMany}) {
    const HostInts ids = fixture.some_ids(count, 0, 499);
    EXPECT_EQ(first_difference(fixture.look_up(ids, OutType::bf16, gpu::Way::staged),
                               fixture.expected(ids, OutType::bf16), OutType::bf16),
              -1);
  }
  fixture.wait();
  EXPECT_GT(fixture.reader->counters().batches.rows_by_gpu, 0u);
}

}  // namespace
}  // namespace ngram_ple::test
