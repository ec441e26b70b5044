// Which request a token belongs to, found by a whole wave at once: the boundaries are read side by side, so a
// search costs one round trip to memory for every factor of the wave's size instead of one for every factor
// of 2. Tokens and requests are counted in 31 bits (launch.h); boundaries past that are read as the nearest
// that fit.
#pragma once

#include "core/ngram_batch.h"
#include "gpu/integers.cuh"

namespace ngram_ple::gpu {

// A batch with its counts in 31 bits.
struct TokenBatch {
  NgramBatch arrays;
  int32_t num_tokens, num_requests;

  NGP_DEVICE int32_t boundary(int32_t i) const { return load_pending(arrays.query_start_loc, i).index(); }
};

struct Request {
  int32_t index;  // -1 when there is none
  int32_t start;  // where its tokens start: a promise of the caller, which decides no address by itself
};

// The last request that starts at or before token t, lane by lane.
NGP_DEVICE Request search_request(const TokenBatch& batch, int32_t t) {
  int32_t low = 0, high = batch.num_requests, start = t;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2, boundary = batch.boundary(middle);
    if (boundary <= t) {
      low = middle + 1;
      start = boundary;
    } else {
      high = middle;
    }
  }
  return {low - 1, start};
}

// How many of the first R boundaries are at or before token t: within [low, high].
struct BoundaryRange {
  int32_t low, high;

  // The first boundary of the window that is read last: the one before the range is wanted too.
  NGP_DEVICE int32_t begin() const { return low > 0 ? low - 1 : 0; }
};

NGP_DEVICE BoundaryRange narrow_to_wave(const TokenBatch& batch, int32_t t) {
  const int32_t wave = static_cast<int32_t>(wave_size()), lane = static_cast<int32_t>(lane_index());
  BoundaryRange range{0, batch.num_requests};
  while (range.high - range.begin() > wave) {
    const int32_t step = (range.high - range.low - 1) / wave + 1;
    const int64_t probe = range.low + int64_t{lane + 1} * step - 1;
    const bool before = probe < range.high && batch.boundary(static_cast<int32_t>(probe)) <= t;
    range.low += static_cast<int32_t>(count_ones(ballot(before))) * step;
    if (range.high - range.low >= step) range.high = range.low + step - 1;
  }
  return range;
}

// search_request for one token a lane; tokens do not decrease from lane to lane. Every lane calls it.
// Whatever the boundaries hold, the index is within -1..R-1.
NGP_DEVICE Request find_request(const TokenBatch& batch, int32_t t) {
  const int32_t wave = static_cast<int32_t>(wave_size()), requests = batch.num_requests;
  if (requests <= 1) return {requests - 1, requests == 1 ? batch.boundary(0) : t};
  if (requests == batch.num_tokens) {  // a decode batch: token t is request t's
    const PendingInt start = load_pending(batch.arrays.query_start_loc, t);
    const PendingInt end = load_pending(batch.arrays.query_start_loc, t + 1);
    if (ballot(!(start.index() <= t && t < end.index())) == 0) return {t, start.index()};
  }
  const int32_t first = static_cast<int32_t>(shuffle(static_cast<uint32_t>(t), 0));
  const int32_t last = static_cast<int32_t>(shuffle(static_cast<uint32_t>(t), wave_size() - 1));
  const int32_t begin = narrow_to_wave(batch, first).begin();
  const int32_t mine = begin + static_cast<int32_t>(lane_index());
  const int32_t boundary = batch.boundary(mine < requests ? mine : requests);
  int32_t within = 0;  // boundaries of the window at or before this lane's token
#pragma unroll 1
  for (int32_t token = first; token <= last; ++token) {
    const uint32_t count = count_ones(ballot(mine < requests && boundary <= token));
    if (token == t) within = static_cast<int32_t>(count);
  }
  const uint32_t holder = static_cast<uint32_t>(within == 0 ? 0 : within - 1);
  const int32_t start = static_cast<int32_t>(shuffle(static_cast<uint32_t>(boundary), holder));
  if (within == 0) return {-1, t};
  if (within < wave || begin + wave >= requests) return {begin + within - 1, start};
  // More boundaries lie between the wave's tokens than it has lanes: many empty or tiny requests.
  return search_request(batch, t);
}

}  // namespace ngram_ple::gpu
