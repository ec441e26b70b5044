// Brings the listed rows of a table in host memory to the device by copies, which need no multiprocessor:
// beside kernels that fill the device they are under way all the same.
#pragma once

#include <array>

#include "gpu/distinct.h"
#include "gpu/stream_order.h"
#include "host_memory/row_stager.h"

namespace ngram_ple::gpu {

// How many pieces a batch of so many ids is brought in, and how large they are.
struct Pieces {
  uint32_t count;
  uint32_t chunks;  // of each
};
Pieces pieces_of(int64_t num_ids, int64_t stride);

// What a call on the host is given: before a piece's copy, or (the first one's) for a small staged batch.
// Graphs know their addresses.
struct PieceCall {
  RowStager* stager;
  const StagingWords* words;
  uint32_t piece;
};
using PieceCalls = std::array<PieceCall, kMostPieces>;

// Copies every row that `find_distinct` has listed in pieces to its place in `rows` [num_ids, stride], once
// the workers have gathered it. A thread of the driver's waits for them: a stream that waited for a word in
// host memory was no faster, and could stand in front of the call that wakes the workers. The copies' sizes
// are those of a batch without repeats: no host learns how many rows there are. Rows of a batch in which a
// worker failed become NaN in every format.
void bring_rows(const DistinctSpace& space, const Staging& staging, PieceCalls& calls, HostBranch& branch,
                int64_t num_ids, uint8_t* rows, Stream stream);

}  // namespace ngram_ple::gpu
