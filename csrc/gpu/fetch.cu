// Waves take chunks of the list from two ends. From the front the workers of the host do too, and a wave
// waits until the rows of its chunk lie in the staging area, where it reads them in sequence at the rate of
// the bus. From the back other waves read rows where the table has them, at the rate of address translation.
// So both are busy until they meet, whatever their rates. The GPU tells the workers in a plain word where it
// is; a chunk that both have taken comes from the GPU.
#include <algorithm>

#include "gpu/batch_end.cuh"
#include "gpu/dispatch.cuh"
#include "gpu/fetch.h"

namespace ngram_ple::gpu {
namespace {

// As many as a block may have, so that few multiprocessors are taken from other work.
constexpr int kFetchThreads = 1024;
constexpr uint32_t kNoChunk = 0xFFFFFFFF;

struct Rows {
  const uint8_t* begin;
  int64_t stride;
  FastDiv<uint32_t> words_per_row;
};

struct FetchPlan {
  Rows table;             // in words of the kernel's type
  Rows staged;            // in words of 16 bytes
  uint32_t direct_waves;  // of a block's
  uint32_t patience;      // ns
};

// --- Claims -----------------------------------------------------------------------------------------
// One lane a wave calls these. While fewer than all chunks are claimed from both ends together, a claim finds
// its chunk free: it only has to be counted.
NGP_DEVICE uint32_t claim_first(BatchState& state, uint32_t chunks) {
  const uint64_t claims = fetch_add(&state.claims, uint64_t{1});
  const uint32_t first = static_cast<uint32_t>(claims), last = static_cast<uint32_t>(claims >> 32);
  return first + last < chunks ? first : kNoChunk;
}

NGP_DEVICE uint32_t claim_last(BatchState& state, uint32_t chunks, StagingWords* words) {
  const uint64_t claims = fetch_add(&state.claims, uint64_t{1} << 32);
  const uint32_t first = static_cast<uint32_t>(claims), last = static_cast<uint32_t>(claims >> 32);
  if (first + last >= chunks) return kNoChunk;
  if (words != nullptr) store_to_host(&words->end, chunks - 1 - last);
  return chunks - 1 - last;
}

// Whether the workers bring the chunk in time. `early` is what the flag said before. A wave that has waited
// in vain, before any worker was seen, spares the others the same: they look once at each flag until one is
// set.
NGP_DEVICE bool wait_for(BatchState& state, const uint32_t* ready, uint32_t early, uint32_t patience) {
  if (early == state.batch) {
    fence_host();
  } else {
    const uint64_t start = nanoseconds();
    while (load_acquire_host(ready) != state.batch) {
      if (load_shared_word(&state.workers) == kAbsent) return false;
      if (nanoseconds() - start > patience) {
        if (load_shared_word(&state.workers) == kUnseen) store_shared_word(&state.workers, kAbsent);
        return false;
      }
      pause_briefly();
    }
  }
  if (load_shared_word(&state.workers) != kPresent) store_shared_word(&state.workers, kPresent);
  return true;
}

// --- Copies -----------------------------------------------------------------------------------------
// By all lanes of a wave: row r of `rows` from lane r's `from` to lane r's `to`, many words under way.
template <class Word>
NGP_DEVICE void copy_rows(const uint8_t* from, uint8_t* to, uint32_t rows, FastDiv<uint32_t> words_per_row) {
  constexpr int kBatch = 5;
  const uint32_t wave = wave_size(), total = rows * words_per_row.divisor;
  LaneParts sources(words_per_row), targets(words_per_row);
  for (uint32_t start = 0; start < total; start += wave * kBatch) {
    Word word[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool wanted = start + i * wave + lane_index() < total;
      const uint8_t* const row = shuffle(from, wanted ? sources.row() : 0);
      if (wanted) word[i] = load_fresh<Word>(row + sources.part() * static_cast<uint32_t>(sizeof(Word)));
      sources.advance();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool wanted = start + i * wave + lane_index() < total;
      uint8_t* const row =
          const_cast<uint8_t*>(shuffle(static_cast<const uint8_t*>(to), wanted ? targets.row() : 0));
      if (wanted) reinterpret_cast<Word*>(row)[targets.part()] = word[i];
      targets.advance();
    }
  }
}

// The rows of one chunk, from the staging area or from the table. Returns how many there are.
template <class Word>
NGP_DEVICE uint32_t copy_chunk(const FetchPlan& plan, const DistinctSpace& space, uint32_t chunk,
                               bool from_table) {
  const uint32_t first = chunk * kChunkRows, left = space.state->rows - first;
  const uint32_t rows = left < kChunkRows ? left : kChunkRows;
  const uint32_t mine = first + (lane_index() < rows ? lane_index() : 0);
  uint8_t* const to = space.rows + int64_t{space.place[mine]} * space.stride;
  if (from_table) {
    const uint8_t* const from = plan.table.begin + int64_t{space.list[mine]} * plan.table.stride;
    copy_rows<Word>(from, to, rows, plan.table.words_per_row);
  } else {
    copy_rows<Bytes16>(plan.staged.begin + int64_t{mine} * plan.staged.stride, to, rows,
                       plan.staged.words_per_row);
  }
  return rows;
}

// What the last wave of a batch does, all lanes of it.
NGP_DEVICE void end_batch(const DistinctSpace& space, StagingWords* words, bool failed) {
  BatchState& state = *space.state;
  if (failed) {
    for (uint32_t i = 0; i < state.rows; ++i) {
      uint8_t* const row = space.rows + int64_t{space.place[i]} * space.stride;
      for (int64_t at = 16 * lane_index(); at < space.stride; at += 16 * wave_size()) spoil(row + at);
    }
  }
  if (lane_index() != 0) return;
  state.totals.rows_by_gpu += load_shared_word(&state.rows_by_gpu);
  tell_totals(state, words);
}

template <class Word>
NGP_KERNEL(kFetchThreads)
fetch_kernel(FetchPlan plan, DistinctSpace space, Staging staging, bool staged) {
  BatchState& state = *space.state;
  StagingWords* const words = staging.words;
  const bool leads = lane_index() == 0;
  const bool direct = thread_index() / wave_size() < plan.direct_waves;
  const uint32_t batch = state.batch, chunks = (state.rows + kChunkRows - 1) / kChunkRows;
  const auto claim = [&] {  // by the lane that leads
    return direct ? claim_last(state, chunks, staged ? words : nullptr) : claim_first(state, chunks);
  };
  uint32_t rows_from_table = 0, chunk = kNoChunk, early = 0;
  if (leads) chunk = claim();
  for (;;) {
    uint32_t late = 0, next = kNoChunk;
    if (leads && chunk != kNoChunk) {
      if (!direct) late = wait_for(state, ready_flag(staging, chunk), early, plan.patience) ? 0 : 1;
      next = claim();
      // the answer, microseconds away, arrives while this chunk is copied
      if (!direct && next != kNoChunk) early = load_shared_word(ready_flag(staging, next));
    }
    sync_wave();
    chunk = shuffle(chunk, 0);
    late = shuffle(late, 0);
    if (chunk == kNoChunk) break;
    const bool from_table = direct || late != 0;
    const uint32_t rows = copy_chunk<Word>(plan, space, chunk, from_table);
    rows_from_table += from_table ? rows : 0;
    chunk = next;
  }
  uint32_t last = 0, failed = 0;
  if (leads) {
    if (rows_from_table > 0) fetch_add(&state.rows_by_gpu, rows_from_table);
  }
  fence_device();
  sync_wave();
  if (leads) {
    const uint32_t waves = static_cast<uint32_t>(num_waves());
    last = fetch_add(&state.waves_done, 1u) == waves - 1 ? 1 : 0;
    fence_device();
    if (last != 0 && staged) failed = load_acquire_host(&words->failed) == batch ? 1 : 0;
  }
  sync_wave();
  last = shuffle(last, 0);
  failed = shuffle(failed, 0);
  if (last != 0) end_batch(space, words, failed != 0);
}

FastDiv<uint32_t> words_in(int64_t bytes, int64_t word_bytes) {
  return make_fast_div(static_cast<uint32_t>(bytes / word_bytes));
}

}  // namespace

void fetch_rows(const TableView& table, const DistinctSpace& space, const Staging& staging, bool staged,
                const FetchOptions& options, Stream stream) {
  const int64_t row_bytes = table.format.slot_bytes;
  const int64_t width = common_alignment(address(table.rows), table.row_stride, row_bytes);
  FetchPlan plan{};
  plan.table = {table.rows, table.row_stride, words_in(row_bytes, width)};
  plan.staged = {staging.slots, staging.stride, words_in(space.stride, 16)};
  plan.direct_waves = staged ? static_cast<uint32_t>(options.direct_waves) : kFetchThreads;
  plan.patience = options.patience;
  dispatch_copy(width, [&](auto chosen) {
    using Word = typename decltype(chosen)::Type::Word;
    launch("pinned_lookup", fetch_kernel<Word>, {options.blocks, kFetchThreads}, stream, plan, space, staging,
           staged);
  });
}

}  // namespace ngram_ple::gpu
