// What the end of a batch has in common, whoever brought its rows.
#pragma once

#include "gpu/atomics.h"
#include "gpu/distinct.h"

namespace ngram_ple::gpu {

// 16 bytes of a row that a worker failed to bring: NaN in every format.
NGP_DEVICE void spoil(uint8_t* at) {
  *reinterpret_cast<Bytes16*>(at) = Bytes16{{0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu}};
}

// By one thread, to the host.
NGP_DEVICE void tell_totals(const BatchState& state, StagingWords* words) {
  store_to_host(&words->totals.batches, state.totals.batches);
  store_to_host(&words->totals.ids, state.totals.ids);
  store_to_host(&words->totals.rows, state.totals.rows);
  store_to_host(&words->totals.rows_by_gpu, state.totals.rows_by_gpu);
}

}  // namespace ngram_ple::gpu
