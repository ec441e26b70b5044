// The host's half of a staged lookup: workers that gather the rows a GPU asks for into pinned memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "host_memory/gather_rows.h"
#include "host_memory/staging.h"
#include "host_memory/worker_pool.h"

namespace ngram_ple {

// Totals of the batches that are over; a failure counts at once.
struct StagerCounters {
  int64_t batches = 0;
  int64_t nanoseconds = 0;     // from the start of each batch until its last worker was done
  int64_t failed_batches = 0;  // in which a worker failed
};

class RowStager final : private Work {
 public:
  using Gather = void (*)(const GatherPart&);

  // Rows of `row_bytes` bytes from `table` on, for batches listed in one of `areas`, which must outlive this
  // object. Throws std::system_error when threads cannot be had.
  RowStager(const uint8_t* table, int64_t row_bytes, std::vector<Staging> areas, int threads,
            Gather gather = &gather_rows, std::chrono::microseconds looking = WorkerPool::kLooking);
  // Waits for the batch under way.
  ~RowStager() override;

  // Begins the batches that the GPU has listed, unless workers that were still awake have seen them already,
  // and returns while they are gathered. May be called from any thread; allocates nothing.
  void begin() noexcept override;
  // The same for one area, whose batch the GPU reads in less time than it takes to wake workers: those that
  // sleep are left alone unless another batch has begun just before, when they would be of use to the next.
  void begin_small(const StagingWords& words) noexcept;

  // Waits until a piece of the batch listed in `words`, which was begun, is gathered.
  static void wait_for_piece(const StagingWords& words, uint32_t piece) noexcept;

  // Waits until no worker touches any area; batches that were begun may be left as they are.
  void finish() noexcept;

  // What the last worker that failed said, once.
  std::string take_error();

  StagerCounters counters() noexcept;

 private:
  void run() noexcept override;
  bool is_called() noexcept override;
  void note_awake(int workers) noexcept override;
  void begin_batch(size_t area, bool wake) noexcept;
  void start(size_t area, uint32_t batch, bool wake) noexcept;
  bool gather_chunk(const GatherPart& unit, uint32_t chunk) noexcept;
  void count_pieces() noexcept;
  void finish_chunks(uint32_t first, uint32_t stop) noexcept;
  void note_error(const char* what) noexcept;
  void account() noexcept;

  const uint8_t* table_;
  int64_t row_bytes_;
  Gather gather_;
  uint32_t threads_;

  std::vector<Staging> areas_;
  std::vector<std::atomic<uint32_t>> begun_;  // the last batch of each area

  std::mutex starting_;  // of what follows
  Staging staging_;      // the batch under way
  uint32_t batch_ = 0, rows_ = 0, chunks_ = 0, unit_ = 1, piece_chunks_ = 0;
  bool under_way_ = false;
  bool is_awaited_ = false;  // by the GPU or a copy, however long it takes
  int64_t started_at_ = 0;
  StagerCounters counters_;

  std::atomic<uint32_t> next_chunk_{0};
  std::array<std::atomic<uint32_t>, kMostPieces> chunks_left_{};  // of each piece

  std::atomic<int64_t> done_at_{0}, failed_batches_{0};
  std::atomic<bool> has_error_{false};
  std::mutex error_mutex_;
  char error_[256] = {};

  WorkerPool pool_;  // last: its threads use what is above
};

}  // namespace ngram_ple
