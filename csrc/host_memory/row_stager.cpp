#include "host_memory/row_stager.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

namespace ngram_ple {
namespace {

// So many shares a worker: small enough that the last ones end together.
constexpr uint32_t kUnitsPerWorker = 8;
constexpr uint32_t kMostUnitChunks = 16;
constexpr int64_t kJustBefore = 300'000;  // ns: some batches of sleeping workers, one after another

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint32_t load(const uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
void store(uint32_t& word, uint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

uint32_t chunks_of(uint32_t rows) { return static_cast<uint32_t>(whole_chunks(rows) / kChunkRows); }

}  // namespace

RowStager::RowStager(const uint8_t* table, int64_t row_bytes, std::vector<Staging> areas, int threads,
                     Gather gather, std::chrono::microseconds looking)
    : table_(table),
      row_bytes_(row_bytes),
      gather_(gather),
      threads_(static_cast<uint32_t>(threads)),
      areas_(std::move(areas)),
      begun_(areas_.size()),
      pool_(threads, *this, looking) {}

RowStager::~RowStager() = default;

bool RowStager::is_called() noexcept {
  for (size_t i = 0; i < areas_.size(); ++i) {
    if (load(areas_[i].words->batch) != begun_[i].load(std::memory_order_relaxed)) return true;
  }
  return false;
}

void RowStager::note_awake(int workers) noexcept {
  for (const Staging& area : areas_) store(area.words->awake, static_cast<uint32_t>(workers));
}

void RowStager::begin() noexcept {
  const std::lock_guard<std::mutex> lock(starting_);
  for (size_t i = 0; i < areas_.size(); ++i) begin_batch(i, true);
}

void RowStager::begin_small(const StagingWords& words) noexcept {
  const std::lock_guard<std::mutex> lock(starting_);
  const bool often = now() - started_at_ < kJustBefore;
  for (size_t i = 0; i < areas_.size(); ++i) {
    if (areas_[i].words == &words) begin_batch(i, often);
  }
}

void RowStager::begin_batch(size_t area, bool wake) noexcept {
  const uint32_t batch = load(areas_[area].words->batch);
  if (batch != begun_[area].load(std::memory_order_relaxed)) start(area, batch, wake);
}

void RowStager::start(size_t area, uint32_t batch, bool wake) noexcept {
  const bool of_another = under_way_ && staging_.words != areas_[area].words;
  if (of_another && is_awaited_) run();  // perhaps no worker has come to it yet
  pool_.close();
  account();
  staging_ = areas_[area];
  rows_ = std::min(load(staging_.words->rows), static_cast<uint32_t>(staging_.capacity));
  chunks_ = chunks_of(rows_);
  unit_ = std::clamp(chunks_ / (threads_ * kUnitsPerWorker), 1u, kMostUnitChunks);
  batch_ = batch;
  count_pieces();
  started_at_ = now();
  done_at_.store(started_at_, std::memory_order_relaxed);
  under_way_ = true;
  is_awaited_ = wake;
  next_chunk_.store(0, std::memory_order_relaxed);
  begun_[area].store(batch, std::memory_order_relaxed);
  pool_.open(wake);
}

void RowStager::wait_for_piece(const StagingWords& words, uint32_t piece) noexcept {
  while (load(words.pieces[piece]) != 1) std::this_thread::yield();
}

void RowStager::finish() noexcept {
  const std::lock_guard<std::mutex> lock(starting_);
  pool_.close();
  account();
}

void RowStager::run() noexcept {
  StagingWords& words = *staging_.words;
  for (;;) {
    const uint32_t first = next_chunk_.fetch_add(unit_, std::memory_order_relaxed);
    const uint32_t stop = std::min({first + unit_, chunks_, load(words.end)});
    if (first >= stop) break;
    GatherPart unit{table_,
                    row_bytes_,
                    staging_.stride,
                    staging_.list,
                    first * int64_t{kChunkRows},
                    0,
                    std::min(stop * int64_t{kChunkRows}, int64_t{rows_}),
                    nullptr};
    ask_for_first_rows(unit);
    for (uint32_t chunk = first; chunk < stop; ++chunk) {
      if (!gather_chunk(unit, chunk) &&
          __atomic_exchange_n(&words.failed, batch_, __ATOMIC_ACQ_REL) != batch_) {
        failed_batches_.fetch_add(1, std::memory_order_relaxed);
      }
      if (piece_chunks_ == 0) store(*ready_flag(staging_, chunk), batch_);
    }
    if (piece_chunks_ != 0) finish_chunks(first, stop);
  }
  int64_t before = done_at_.load(std::memory_order_relaxed);
  const int64_t at = now();
  while (before < at && !done_at_.compare_exchange_weak(before, at, std::memory_order_relaxed)) {
  }
}

// Pieces without rows are there already.
void RowStager::count_pieces() noexcept {
  piece_chunks_ = load(staging_.words->piece_chunks);
  if (piece_chunks_ == 0) return;
  uint32_t left = chunks_;
  for (uint32_t piece = 0; piece < kMostPieces; ++piece) {
    const uint32_t chunks = std::min(left, piece_chunks_);
    left -= chunks;
    chunks_left_[piece].store(chunks, std::memory_order_relaxed);
    if (chunks == 0) store(staging_.words->pieces[piece], 1);
  }
}

void RowStager::finish_chunks(uint32_t first, uint32_t stop) noexcept {
  while (first < stop) {
    const uint32_t piece = first / piece_chunks_, end = std::min(stop, (piece + 1) * piece_chunks_);
    const uint32_t count = end - first;
    if (chunks_left_[piece].fetch_sub(count, std::memory_order_acq_rel) == count) {
      store(staging_.words->pieces[piece], 1);
    }
    first = end;
  }
}

bool RowStager::gather_chunk(const GatherPart& unit, uint32_t chunk) noexcept {
  GatherPart part = unit;
  part.begin = chunk * int64_t{kChunkRows};
  part.end = std::min(part.begin + kChunkRows, unit.asked_end);
  part.to = staging_.slots + part.begin * staging_.stride;
  try {
    gather_(part);
    return true;
  } catch (const std::exception& error) {
    note_error(error.what());
  } catch (...) {
    note_error("something that is no std::exception");
  }
  return false;
}

void RowStager::note_error(const char* what) noexcept {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  std::snprintf(error_, sizeof error_, "%s", what);
  has_error_.store(true, std::memory_order_release);
}

std::string RowStager::take_error() {
  if (!has_error_.load(std::memory_order_acquire)) return {};
  const std::lock_guard<std::mutex> lock(error_mutex_);
  has_error_.store(false, std::memory_order_release);
  return error_;
}

// Of the batch that has ended, while no worker is inside.
void RowStager::account() noexcept {
  if (!under_way_) return;
  under_way_ = false;
  ++counters_.batches;
  counters_.nanoseconds += done_at_.load(std::memory_order_relaxed) - started_at_;
}

StagerCounters RowStager::counters() noexcept {
  const std::lock_guard<std::mutex> lock(starting_);
  StagerCounters counters = counters_;
  counters.failed_batches = failed_batches_.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace ngram_ple
