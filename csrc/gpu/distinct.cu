#include <algorithm>

#include "gpu/batch_begin.cuh"
#include "gpu/integers.cuh"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 256;
constexpr uint64_t kNoEntry = ~uint64_t{0};

// Which bucket of equally many rows a row lies in: multiplied, so that no division is needed.
struct Buckets {
  uint64_t scale;  // buckets * 2^32 / rows
  uint32_t count;
  NGP_DEVICE uint32_t of(uint32_t row) const { return static_cast<uint32_t>((row * scale) >> 32); }
};

Buckets make_buckets(int64_t num_ids, int64_t rows) {
  uint32_t count = kThreads;
  while (count < kMostBuckets && count * 16 < num_ids) count *= 2;
  return {(static_cast<uint64_t>(count) << 32) / static_cast<uint64_t>(std::max<int64_t>(rows, 1)), count};
}

NGP_DEVICE int64_t global_thread() { return int64_t{block_index()} * block_threads() + thread_index(); }
NGP_DEVICE int64_t all_threads() { return int64_t{grid_blocks()} * block_threads(); }

NGP_DEVICE uint32_t scrambled(uint32_t row) {
  row = (row ^ row >> 16) * 0x85EBCA6Bu;
  return row ^ row >> 13;
}

// The first thread with a row enters it, counts it in its bucket, and takes its place; the others learn that
// thread's place.
NGP_DEVICE void enter(const DistinctSpace& space, uint32_t mask, const Buckets& buckets, uint32_t row,
                      uint32_t i) {
  const uint64_t mine = static_cast<uint64_t>(row) << 32 | i;
  for (uint32_t at = scrambled(row) & mask;; at = (at + 1) & mask) {
    uint64_t* const entry = space.entries + at;
    uint64_t found = load_shared_word(entry);
    if (found == kNoEntry) found = compare_and_swap(entry, kNoEntry, mine);
    if (found == kNoEntry) {
      space.source[i] = static_cast<int32_t>(i);
      space.rank[i] = fetch_add(space.counts + buckets.of(row), 1u);
      return;
    }
    if (static_cast<uint32_t>(found >> 32) == row) {
      space.source[i] = static_cast<int32_t>(static_cast<uint32_t>(found));
      return;
    }
  }
}

NGP_KERNEL(kThreads)
enter_kernel(IntArray ids, int64_t num_ids, int64_t row_start, int64_t row_end, DistinctSpace space,
             uint32_t mask, Buckets buckets) {
  for (int64_t i = global_thread(); i < num_ids; i += all_threads()) {
    const int64_t id = load_pending(ids, i).value();
    if (id < row_start || id >= row_end) {
      space.source[i] = -1;
    } else {
      enter(space, mask, buckets, static_cast<uint32_t>(id - row_start), static_cast<uint32_t>(i));
    }
  }
}

// Where each bucket begins: every block sums for itself. `begins` has room for the counts and two numbers a
// thread. Returns the sum of all.
NGP_DEVICE uint32_t sum_counts(const uint32_t* counts, uint32_t num_counts, uint32_t* begins) {
  const uint32_t thread = thread_index(), each = num_counts / kThreads;
  uint32_t* sums = begins + num_counts;
  uint32_t sum = 0;
  for (uint32_t k = 0; k < each; ++k) sum += counts[thread * each + k];
  sums[thread] = sum;
  sync_block();
  uint32_t from = 0;
  for (uint32_t step = 1; step < kThreads; step *= 2) {
    const uint32_t before = thread >= step ? sums[from + thread - step] : 0;
    sums[kThreads - from + thread] = sums[from + thread] + before;
    from = kThreads - from;
    sync_block();
  }
  uint32_t begin = sums[from + thread] - sum;
  for (uint32_t k = 0; k < each; ++k) {
    begins[thread * each + k] = begin;
    begin += counts[thread * each + k];
  }
  const uint32_t total = sums[from + kThreads - 1];
  sync_block();
  return total;
}

// Whether this thread is the one that all others of the grid have come before, their writes to the host
// included.
NGP_DEVICE bool is_last_of_all(BatchState& state) {
  fence_host();
  sync_block();
  if (thread_index() != 0) return false;
  const bool last = fetch_add(&state.blocks_done, 1u) == grid_blocks() - 1;
  fence_host();
  return last;
}

NGP_KERNEL(kThreads)
list_kernel(IntArray ids, int64_t num_ids, int64_t row_start, DistinctSpace space, Buckets buckets,
            const uint32_t* awake) {
  // asked for first: the answer is microseconds away
  const uint32_t workers = global_thread() == 0 && awake != nullptr ? load_shared_word(awake) : 1;
  uint32_t* const begins = reinterpret_cast<uint32_t*>(shared_memory());
  const uint32_t total = sum_counts(space.counts, buckets.count, begins);
  if (global_thread() == 0) begin_batch(*space.state, total, workers);
  for (int64_t i = global_thread(); i < num_ids; i += all_threads()) {
    if (space.source[i] != static_cast<int32_t>(i)) continue;
    const uint32_t row = static_cast<uint32_t>(load_pending(ids, i).value() - row_start);
    const uint32_t at = begins[buckets.of(row)] + space.rank[i];
    space.list[at] = row;
    space.place[at] = static_cast<uint32_t>(i);
    space.rank[i] = at;  // in the whole list now
  }
}

// Leaves entries and counts as the next batch wants them, and the list and then the batch's number where
// workers look for it.
NGP_KERNEL(kThreads)
publish_kernel(DistinctSpace space, uint32_t num_entries, uint32_t num_counts, int64_t num_ids,
               Staging staging, Listing listing) {
  BatchState& state = *space.state;
  const uint32_t rows = state.rows;
  const int64_t first = global_thread(), step = all_threads();
  if (listing.staged) {
    for (int64_t i = first; i < rows; i += step) staging.list[i] = space.list[i];
  }
  if (listing.piece_chunks != 0) {
    for (int64_t i = first; i < num_ids; i += step) {
      const int32_t source = space.source[i];
      listing.places[i] = source < 0 ? -1 : static_cast<int32_t>(space.rank[source]);
    }
    if (first < kMostPieces) store_to_host(staging.words->pieces + first, 0u);
  }
  for (int64_t i = first; i < num_entries; i += step) space.entries[i] = kNoEntry;
  for (int64_t i = first; i < num_counts; i += step) space.counts[i] = 0;
  if (listing.staged && is_last_of_all(state)) tell_workers(state, staging.words, listing.piece_chunks);
  if (first == 0) count_batch(state, num_ids);
}

NGP_KERNEL(kThreads) clear_kernel(DistinctSpace space) {
  for (int64_t i = global_thread(); i < space.entry_count; i += all_threads()) space.entries[i] = kNoEntry;
  for (int64_t i = global_thread(); i < kMostBuckets; i += all_threads()) space.counts[i] = 0;
  if (global_thread() == 0) *space.state = BatchState{};
}

uint32_t entries_for(int64_t ids) {
  uint32_t count = 1024;
  while (count < 2 * ids) count *= 2;
  return count;
}

Grid grid_for(int64_t items, uint32_t shared_bytes = 0) {
  constexpr int64_t kMostBlocks = 1056;  // a few a multiprocessor
  return {std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, kMostBlocks), kThreads, shared_bytes};
}

}  // namespace

DistinctSpace lay_out_distinct(uint8_t* memory, int64_t capacity, int64_t stride, int64_t* bytes) {
  int64_t at = 0;
  const auto take = [&](int64_t count) {
    uint8_t* const begin = memory == nullptr ? nullptr : memory + at;
    at += (count + 255) / 256 * 256;
    return begin;
  };
  DistinctSpace space;
  space.capacity = capacity;
  space.stride = stride;
  space.entry_count = entries_for(capacity);
  space.state = reinterpret_cast<BatchState*>(take(static_cast<int64_t>(sizeof(BatchState))));
  space.counts = reinterpret_cast<uint32_t*>(take(int64_t{kMostBuckets} * 4));
  space.entries = reinterpret_cast<uint64_t*>(take(int64_t{space.entry_count} * 8));
  space.source = reinterpret_cast<int32_t*>(take(capacity * 4));
  space.rank = reinterpret_cast<uint32_t*>(take(capacity * 4));
  space.list = reinterpret_cast<uint32_t*>(take(capacity * 4));
  space.place = reinterpret_cast<uint32_t*>(take(capacity * 4));
  space.rows = take(capacity * stride);
  if (bytes != nullptr) *bytes = at;
  return space;
}

void clear_distinct(const DistinctSpace& space, Stream stream) {
  launch("pinned_lookup", clear_kernel, grid_for(space.entry_count), stream, space);
}

void find_distinct(const IntArray& ids, int64_t num_ids, int64_t row_start, int64_t row_end,
                   const DistinctSpace& space, const Staging& staging, const Listing& listing,
                   Stream stream) {
  const char* const op = "pinned_lookup";
  const uint32_t entries = entries_for(num_ids);
  const Buckets buckets = make_buckets(num_ids, row_end - row_start);
  launch(op, enter_kernel, grid_for(num_ids), stream, ids, num_ids, row_start, row_end, space, entries - 1,
         buckets);
  launch(op, list_kernel, grid_for(num_ids, 4 * (buckets.count + 2 * kThreads)), stream, ids, num_ids,
         row_start, space, buckets, listing.awake);
  launch(op, publish_kernel, grid_for(entries), stream, space, entries, buckets.count, num_ids, staging,
         listing);
}

}  // namespace ngram_ple::gpu
