// The list of the rows that a batch wants, made on the GPU: the distinct ones in the order of their
// addresses, or all of them as they come.
#pragma once

#include <cstdint>

#include "core/int_array.h"
#include "gpu/launch.h"
#include "host_memory/staging.h"

namespace ngram_ple::gpu {

// Rows of a table are told apart by 32 bits, the last value standing for none.
inline constexpr int64_t kMostDistinctRows = 0xFFFFFFFF;

// What is known of the workers while the GPU waits for them: none has brought anything yet, the same but none
// is expected soon, or they have.
inline constexpr uint32_t kUnseen = 0, kAbsent = 1, kPresent = 2;

// What several kernels share while one batch is under way.
struct BatchState {
  uint64_t claims;       // chunks taken from the front (low half) and from the back of the list
  uint32_t batch;        // its number, never 0
  uint32_t rows;         // that are listed
  uint32_t rows_by_gpu;  // of those, rows not read through the workers
  uint32_t blocks_done;  // of the publishing kernel
  uint32_t waves_done;   // of the fetching kernel
  uint32_t workers;
  BatchTotals totals;
};

// Device memory for batches of up to `capacity` ids, one batch at a time.
struct DistinctSpace {
  BatchState* state = nullptr;
  uint32_t* counts = nullptr;   // [kMostBuckets]
  uint64_t* entries = nullptr;  // [entry_count]: row in the upper half, index of an id in the lower
  int32_t* source = nullptr;    // [capacity]: for each id the place of its row in `rows`, -1 without one
  uint32_t* rank = nullptr;     // [capacity]: place inside a bucket, then in the list
  uint32_t* list = nullptr;     // [capacity]: rows, counted from the table's first
  uint32_t* place = nullptr;    // [capacity]: where each goes in `rows`
  uint8_t* rows = nullptr;      // [capacity, stride]
  int64_t capacity = 0;
  int64_t stride = 0;
  uint32_t entry_count = 0;
};

inline constexpr uint32_t kMostBuckets = 4096;

// Who is told of the list.
struct Listing {
  bool staged = false;        // the workers: it goes to the staging area
  uint32_t piece_chunks = 0;  // not 0: they bring it in pieces of so many chunks, for copies
  int32_t* places = nullptr;  // then [num_ids]: for each id the place of its row in the list, -1 without one
  const uint32_t* awake = nullptr;  // how many of them are, null when they are waited for in any case
};

// Lays the space out from `memory`; null just counts. It must hold what clear_distinct() or a batch left.
DistinctSpace lay_out_distinct(uint8_t* memory, int64_t capacity, int64_t stride, int64_t* bytes);
void clear_distinct(const DistinctSpace& space, Stream stream);

// Fills source, list, place and state for ids [num_ids], num_ids <= capacity, of a table that holds the
// global rows [row_start, row_end), fewer than kMostDistinctRows; and tells of it as `listing` says. The list
// is ordered by address but for the order inside each of the buckets that the table is cut into.
void find_distinct(const IntArray& ids, int64_t num_ids, int64_t row_start, int64_t row_end,
                   const DistinctSpace& space, const Staging& staging, const Listing& listing, Stream stream);

// The same for a staged batch, in one small kernel: every id that the table owns is listed, repeats too, in
// any order.
void list_all(const IntArray& ids, int64_t num_ids, int64_t row_start, int64_t row_end,
              const DistinctSpace& space, const Staging& staging, const uint32_t* awake, Stream stream);

}  // namespace ngram_ple::gpu
