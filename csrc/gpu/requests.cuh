// Which request a token belongs to, found by a whole wave at once: the boundaries are read side by side, so a
// search costs one round trip to memory for every factor of the wave's size instead of one for every factor
// of 2.
#pragma once

#include "core/ngram_hash.h"
#include "gpu/integers.cuh"

namespace ngram_ple::gpu {

struct Request {
  int64_t index;  // -1 when there is none
  int64_t start;  // where its tokens start; the promise of the caller, so trusted for arithmetic only
};

// The narrowest known range of the number of boundaries at or before a token.
struct BoundaryRange {
  int64_t low, high;

  // The first boundary of the window that is read last: the one before the range is wanted too.
  NGP_DEVICE int64_t begin() const { return low > 0 ? low - 1 : 0; }
};

NGP_DEVICE BoundaryRange narrow_to_wave(const NgramBatch& batch, int64_t t) {
  const int64_t wave = wave_size();
  BoundaryRange range{0, batch.num_requests};
  while (range.high - range.begin() > wave) {
    const int64_t step = (range.high - range.low + wave - 1) / wave;
    const int64_t probe = range.low + (lane_index() + 1) * step - 1;
    const bool before = probe < range.high && load_int(batch.query_start_loc, probe) <= t;
    range.low += count_ones(ballot(before)) * step;
    range.high = range.low + step - 1 < range.high ? range.low + step - 1 : range.high;
  }
  return range;
}

// As find_request of core/ngram_hash.h, for one token a lane: tokens do not decrease from lane to lane. Every
// lane calls it. Whatever the boundaries hold, the index is within -1..R-1.
NGP_DEVICE Request find_request_together(const NgramBatch& batch, int64_t t) {
  const int64_t wave = wave_size(), requests = batch.num_requests;
  if (requests == 0) return {-1, t};
  if (requests == batch.num_tokens && requests > wave) {  // a decode batch: token t is request t's
    const PendingInt start = load_pending(batch.query_start_loc, t);
    const PendingInt end = load_pending(batch.query_start_loc, t + 1);
    if (ballot(!(start.value() <= t && t < end.value())) == 0) return {t, start.value()};
  }
  const int64_t first = shuffle(t, 0), last = shuffle(t, wave_size() - 1);
  const int64_t begin = narrow_to_wave(batch, first).begin();
  const int64_t mine = begin + lane_index();
  const int64_t boundary = load_int(batch.query_start_loc, mine < requests ? mine : requests);
  uint32_t within = 0;  // boundaries of the window at or before this lane's token
  for (int64_t token = first; token <= last; ++token) {
    const uint32_t count = count_ones(ballot(mine < requests && boundary <= token));
    if (token == t) within = count;
  }
  const int64_t start = shuffle(boundary, within == 0 ? 0 : within - 1);
  if (within == 0) return {-1, t};
  if (within < wave || begin + wave >= requests) return {begin + within - 1, start};
  // More boundaries lie between the wave's tokens than it has lanes: many empty or tiny requests.
  const int64_t index = find_request(batch, t);
  return {index, index < 0 ? t : batch.query_start_loc[index]};
}

}  // namespace ngram_ple::gpu
