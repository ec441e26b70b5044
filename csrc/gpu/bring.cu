#include <algorithm>

#include "gpu/batch_end.cuh"
#include "gpu/bring.h"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 1024;

NGP_KERNEL(kThreads) end_kernel(DistinctSpace space, StagingWords* words, uint8_t* rows) {
  const BatchState& state = *space.state;
  if (load_acquire_host(&words->failed) == state.batch) {
    const int64_t end = state.rows * space.stride;
    for (int64_t at = 16 * int64_t{thread_index()}; at < end; at += 16 * kThreads) spoil(rows + at);
  }
  if (thread_index() == 0) tell_totals(state, words);
}

void begin_and_wait(void* data) {
  const PieceCall& call = *static_cast<const PieceCall*>(data);
  call.stager->begin();  // unless workers that were awake have begun already
  call.stager->wait_for_piece(*call.words, call.piece);
}

}  // namespace

// The last piece is copied after everything else, so pieces are small, but each costs a call on the host.
Pieces pieces_of(int64_t num_ids, int64_t stride) {
  constexpr int64_t kPieceBytes = 2 << 20;
  const int64_t chunks = whole_chunks(num_ids) / kChunkRows;
  const int64_t most = std::clamp<int64_t>(num_ids * stride / kPieceBytes, 1, kMostPieces);
  const int64_t each = (chunks + most - 1) / most;
  return {static_cast<uint32_t>((chunks + each - 1) / each), static_cast<uint32_t>(each)};
}

void bring_rows(const DistinctSpace& space, const Staging& staging, PieceCalls& calls, HostBranch& branch,
                int64_t num_ids, uint8_t* rows, Stream stream) {
  const Pieces pieces = pieces_of(num_ids, space.stride);
  const int64_t piece_rows = int64_t{pieces.chunks} * kChunkRows;
  branch.fork(stream);
  for (uint32_t piece = 0; piece < pieces.count; ++piece) {
    const int64_t first = piece * piece_rows, count = std::min(piece_rows, num_ids - first);
    branch.call(&begin_and_wait, &calls[piece]);
    branch.join(stream);
    copy_to_device(stream, rows + first * space.stride, staging.slots + first * space.stride,
                   count * space.stride);
  }
  launch("pinned_lookup", end_kernel, {1, kThreads}, stream, space, staging.words, rows);
}

}  // namespace ngram_ple::gpu
