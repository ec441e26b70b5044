// The workers that gather rows, with the GPU's part played by the test.
#include "host_memory/row_stager.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

namespace ngram_ple {
namespace {

uint32_t seen(const uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

// Aligned memory that holds a staging area.
class Area {
 public:
  Area(int64_t capacity, int64_t stride) {
    int64_t bytes = 0;
    lay_out_staging(nullptr, capacity, stride, &bytes);
    memory_.resize(static_cast<size_t>(bytes) + 128);
    const uint64_t at = (reinterpret_cast<uintptr_t>(memory_.data()) + 127) / 128 * 128;
    staging_ = lay_out_staging(reinterpret_cast<uint8_t*>(at), capacity, stride, &bytes);
  }
  const Staging& operator*() const { return staging_; }

  // As the GPU does before the host is called; it takes the chunks from `end` on itself.
  void list(const std::vector<uint32_t>& rows, uint32_t end = UINT32_MAX, uint32_t piece_chunks = 0) {
    const uint32_t chunks =
        static_cast<uint32_t>(whole_chunks(static_cast<int64_t>(rows.size())) / kChunkRows);
    for (size_t i = 0; i < rows.size(); ++i) __atomic_store_n(staging_.list + i, rows[i], __ATOMIC_RELAXED);
    __atomic_store_n(&staging_.words->rows, static_cast<uint32_t>(rows.size()), __ATOMIC_RELEASE);
    __atomic_store_n(&staging_.words->end, std::min(chunks, end), __ATOMIC_RELEASE);
    __atomic_store_n(&staging_.words->piece_chunks, piece_chunks, __ATOMIC_RELEASE);
    for (uint32_t& piece : staging_.words->pieces) __atomic_store_n(&piece, 0u, __ATOMIC_RELEASE);
    __atomic_store_n(&staging_.words->batch, ++batch_, __ATOMIC_RELEASE);
  }

 private:
  uint32_t batch_ = 0;
  std::vector<uint8_t> memory_;
  Staging staging_;
};

struct Table {
  int64_t row_bytes, rows;
  std::vector<uint8_t> memory;
  Table(int64_t row_bytes_, int64_t rows_)
      : row_bytes(row_bytes_), rows(rows_), memory(static_cast<size_t>(row_bytes_ * rows_)) {
    std::mt19937 random(1);
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random());
  }
  std::vector<uint32_t> some(size_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<uint32_t> chosen(count);
    for (uint32_t& row : chosen) row = static_cast<uint32_t>(random() % static_cast<uint32_t>(rows));
    return chosen;
  }
};

// Waits as the GPU does, chunk by chunk, and compares.
void expect_rows(const Table& table, const Staging& staging, const std::vector<uint32_t>& rows) {
  const uint32_t batch = seen(staging.words->batch);
  for (size_t i = 0; i < rows.size(); ++i) {
    while (seen(*ready_flag(staging, static_cast<uint32_t>(i / kChunkRows))) != batch) {
      std::this_thread::yield();
    }
    ASSERT_EQ(
        std::memcmp(staging.slots + static_cast<int64_t>(i) * staging.stride,
                    table.memory.data() + rows[i] * table.row_bytes, static_cast<size_t>(table.row_bytes)),
        0)
        << i;
  }
}

TEST(RowStager, BatchesOfEverySize) {
  for (int64_t row_bytes : {1, 16, 96, 100, 160, 640}) {
    const Table table(row_bytes, 1000);
    Area area(5000, (row_bytes + 15) / 16 * 16);
    RowStager stager(table.memory.data(), row_bytes, {*area}, 3);
    uint32_t seed = 0;
    for (size_t count : {0, 1, 31, 32, 33, 1000, 5000}) {
      const auto rows = table.some(count, ++seed);
      area.list(rows);
      stager.begin();
      expect_rows(table, *area, rows);
    }
    stager.finish();
    EXPECT_EQ(stager.counters().batches, 7);
    EXPECT_EQ(stager.counters().failed_batches, 0);
    EXPECT_GT(stager.counters().nanoseconds, 0);
  }
}

TEST(RowStager, PiecesAreToldWhenTheyAreWhole) {
  const Table table(96, 1000);
  Area area(5000, 96);
  RowStager stager(table.memory.data(), 96, {*area}, 3);
  uint32_t seed = 0;
  for (uint32_t piece_chunks : {10, 11, 200}) {
    for (size_t count : {0, 1, 33, 1000, 5000}) {
      const auto rows = table.some(count, ++seed);
      area.list(rows, UINT32_MAX, piece_chunks);
      stager.begin();
      for (size_t piece = 0; piece < kMostPieces; ++piece) {
        while (seen((*area).words->pieces[piece]) != 1) std::this_thread::yield();
        const size_t piece_rows = piece_chunks * size_t{kChunkRows};
        for (size_t i = piece * piece_rows; i < std::min(rows.size(), (piece + 1) * piece_rows); ++i) {
          ASSERT_EQ(std::memcmp((*area).slots + i * 96, table.memory.data() + rows[i] * 96, 96), 0) << i;
        }
      }
    }
  }
}

TEST(RowStager, ManyBatchesOfTwoAreas) {
  const Table table(160, 10000);
  Area areas[] = {Area(640, 160), Area(640, 160)};
  RowStager stager(table.memory.data(), 160, {*areas[0], *areas[1]}, 4);
  for (uint32_t i = 0; i < 2000; ++i) {
    Area& area = areas[i % 2];
    const auto rows = table.some(1 + i % 640, i);
    area.list(rows);
    if (i % 5 != 1) stager.begin();  // else workers see it themselves, or the next call tells them
    if (i % 3 == 0) stager.begin();
    if (i % 3 == 0) expect_rows(table, *area, rows);
    if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // workers fall asleep
  }
  stager.finish();
  EXPECT_GE(stager.counters().batches, 1000);
  EXPECT_LE(stager.counters().batches, 2000);
}

void await_chunks(const Staging& staging, uint32_t chunks) {
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    while (seen(*ready_flag(staging, chunk)) != seen(staging.words->batch)) std::this_thread::yield();
  }
}

TEST(RowStager, LeavesWhatTheGpuTook) {
  const Table table(32, 100);
  Area area(1024, 32);
  RowStager stager(table.memory.data(), 32, {*area}, 2);
  area.list(table.some(1024, 1), 10);
  stager.begin();
  await_chunks(*area, 10);
  stager.finish();
  for (uint32_t chunk = 10; chunk < 32; ++chunk) EXPECT_EQ(*ready_flag(*area, chunk), 0u) << chunk;
}

// Workers that wait and are awake need no call.
TEST(RowStager, AwakeWorkersSeeABatch) {
  const Table table(32, 100);
  Area area(64, 32);
  RowStager stager(table.memory.data(), 32, {*area}, 2, &gather_rows, std::chrono::hours(1));
  for (uint32_t i = 0; i < 100; ++i) {
    const auto rows = table.some(64, i);
    area.list(rows);
    expect_rows(table, *area, rows);
  }
}

void await_sleep(const Staging& staging) {
  while (seen(staging.words->awake) != 0) std::this_thread::yield();
}

TEST(RowStager, TellsHowManyAreAwake) {
  const Table table(32, 100);
  Area areas[] = {Area(64, 32), Area(64, 32)};
  RowStager stager(table.memory.data(), 32, {*areas[0], *areas[1]}, 3);
  await_sleep(*areas[0]);
  await_sleep(*areas[1]);
  const auto rows = table.some(64, 1);
  areas[0].list(rows);
  stager.begin();
  expect_rows(table, *areas[0], rows);
  await_sleep(*areas[0]);

  Area looking(64, 32);
  RowStager restless(table.memory.data(), 32, {*looking}, 3, &gather_rows, std::chrono::hours(1));
  EXPECT_EQ(seen((*looking).words->awake), 3u);
}

// Small batches wake workers only when they come often.
TEST(RowStager, SmallBatchesLetWorkersSleep) {
  const Table table(32, 100);
  Area area(64, 32);
  RowStager stager(table.memory.data(), 32, {*area}, 3);
  await_sleep(*area);
  area.list(table.some(64, 1));
  stager.begin_small(*(*area).words);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(seen(*ready_flag(*area, 0)), 0u);
  EXPECT_EQ(seen((*area).words->awake), 0u);
  const auto rows = table.some(64, 2);
  while (seen((*area).words->awake) == 0) {  // until two come soon enough after each other
    area.list(rows);
    stager.begin_small(*(*area).words);
    std::this_thread::yield();
  }
  area.list(rows);
  stager.begin();
  expect_rows(table, *area, rows);
}

// The other area's batch is begun by its own call, which then waits for its pieces.
TEST(RowStager, ASmallBatchBeginsNoOther) {
  const Table table(32, 1000);
  Area small(640, 32), other(640, 32);
  RowStager stager(table.memory.data(), 32, {*small, *other}, 3);
  await_sleep(*small);
  for (uint32_t i = 0; i < 20; ++i) {
    if (i % 2 == 0) small.list(table.some(64, i));
    other.list(table.some(640, i), UINT32_MAX, 10);
    stager.begin_small(*(*small).words);
    stager.begin();
    for (uint32_t piece : {0, 1}) RowStager::wait_for_piece(*(*other).words, piece);
    if (i % 4 == 3) await_sleep(*small);
  }
}

std::thread::id caller;
std::atomic<int> gathered_by_caller{0};
void count_calls(const GatherPart& part) {
  if (std::this_thread::get_id() == caller) ++gathered_by_caller;
  gather_rows(part);
}

// A batch that woke nobody is read by the GPU, long before the next one comes.
TEST(RowStager, NobodyGathersASmallBatchThatIsOver) {
  caller = std::this_thread::get_id();
  const Table table(32, 1000);
  Area areas[] = {Area(640, 32), Area(640, 32)};
  RowStager stager(table.memory.data(), 32, {*areas[0], *areas[1]}, 3, &count_calls);
  await_sleep(*areas[0]);
  for (uint32_t i = 0; i < 20; ++i) {
    const Area& area = areas[i % 2];
    areas[i % 2].list(table.some(640, i));
    stager.begin_small(*(*area).words);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(gathered_by_caller, 0);
}

// One stream's batch must not make the workers leave another's.
TEST(RowStager, TwoAreasAtOnce) {
  const Table table(160, 1000);
  Area areas[] = {Area(4096, 160), Area(4096, 160)};
  RowStager stager(table.memory.data(), 160, {*areas[0], *areas[1]}, 2);
  for (uint32_t i = 0; i < 100; ++i) {
    const auto first = table.some(4096, i), second = table.some(4096, i + 1000);
    areas[0].list(first);
    areas[1].list(second);
    stager.begin();
    expect_rows(table, *areas[0], first);
    expect_rows(table, *areas[1], second);
  }
}

void fail_at_chunk_3(const GatherPart& part) {
  if (part.begin == 3 * kChunkRows) throw std::runtime_error("no such page");
  gather_rows(part);
}
void fail_oddly(const GatherPart&) { throw 7; }

TEST(RowStager, AFailureIsToldOnceAndLeavesNobodyWaiting) {
  const Table table(32, 100);
  Area area(256, 32);
  RowStager stager(table.memory.data(), 32, {*area}, 2, &fail_at_chunk_3);
  const auto rows = table.some(256, 1);
  area.list(rows);
  stager.begin();
  await_chunks(*area, 8);
  stager.finish();
  EXPECT_EQ((*area).words->failed, (*area).words->batch);
  EXPECT_EQ(stager.take_error(), "no such page");
  EXPECT_EQ(stager.take_error(), "");
  EXPECT_EQ(stager.counters().failed_batches, 1);
  area.list(table.some(64, 2));
  stager.begin();
  await_chunks(*area, 2);
  stager.finish();
  EXPECT_NE((*area).words->failed, (*area).words->batch);
  EXPECT_EQ(stager.counters().failed_batches, 1);

  Area other(64, 32);  // the first stager's workers look at their own a little longer
  RowStager odd(table.memory.data(), 32, {*other}, 1, &fail_oddly);
  other.list(table.some(64, 3));
  odd.begin();
  await_chunks(*other, 2);
  odd.finish();
  EXPECT_EQ(odd.take_error(), "something that is no std::exception");
}

TEST(RowStager, EndsWithABatchUnderWay) {
  const Table table(160, 1000);
  for (int i = 0; i < 50; ++i) {
    Area area(4096, 160);
    RowStager stager(table.memory.data(), 160, {*area}, 3);
    area.list(table.some(4096, 1));
    stager.begin();
  }
}

TEST(RowStager, AForkedChildForgetsTheWorkers) {
  const Table table(160, 1000);
  Area area(64, 160);
  auto stager = std::make_unique<RowStager>(table.memory.data(), 160, std::vector<Staging>{*area}, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // they are asleep
  const pid_t child = fork();
  if (child == 0) {
    stager.reset();
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ngram_ple
