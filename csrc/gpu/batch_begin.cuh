// What the beginning of a batch has in common, however its rows were listed. One thread calls these.
#pragma once

#include "gpu/atomics.h"
#include "gpu/distinct.h"

namespace ngram_ple::gpu {

// `awake`: how many workers are, as the host says; not 0 where they are waited for in any case.
NGP_DEVICE void begin_batch(BatchState& state, uint32_t rows, uint32_t awake) {
  state.batch = state.batch + 1 == 0 ? 1 : state.batch + 1;
  state.claims = 0;
  state.rows = rows;
  state.rows_by_gpu = 0;
  state.blocks_done = 0;
  state.waves_done = 0;
  state.workers = awake == 0 ? kAbsent : kUnseen;
}

// After every part of the list has been written and fenced. The batch's number comes last.
NGP_DEVICE void tell_workers(const BatchState& state, StagingWords* words, uint32_t piece_chunks) {
  store_to_host(&words->rows, state.rows);
  store_to_host(&words->piece_chunks, piece_chunks);
  store_to_host(&words->end, (state.rows + kChunkRows - 1) / kChunkRows);
  fence_host();
  store_to_host(&words->batch, state.batch);
}

NGP_DEVICE void count_batch(BatchState& state, int64_t num_ids) {
  ++state.totals.batches;
  state.totals.ids += static_cast<uint64_t>(num_ids);
  state.totals.rows += state.rows;
}

}  // namespace ngram_ple::gpu
