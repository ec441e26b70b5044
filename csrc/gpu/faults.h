// NGRAM_PLE_CHECK=1: what only the GPU can see of an operator's inputs, reported through one pinned word.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/launch.h"

namespace ngram_ple::gpu {

// Looks at a batch's values on the GPU before `op` uses them. Outside a capture it waits for the answer;
// inside, the look is captured and every replay repeats it, so that the next checked call of the process
// hears of it.
//
// Throws std::runtime_error that names op, argument, requirement and value, also for what earlier calls left
// behind.
void check_batch(const char* op, const NgramBatch& batch, Stream stream);

// The same for ids: -1 is the padding that nobody owns, anything below is a fault, and so is an id past the
// end of `table` where that is the `whole` table.
void check_ids(const char* op, const IntArray& ids, int64_t num_ids, const TableView& table, bool whole,
               Stream stream);

}  // namespace ngram_ple::gpu
