// What a GPU and the workers of the host tell each other about one batch of rows: words, flags and rows in
// pinned memory that both read and write. Neither ever waits for the other without end: see gpu/fetch.cu.
#pragma once

#include <cstdint>

#include "core/portability.h"

namespace ngram_ple {

// Rows that become ready together; what a wave of the GPU brings over at a time.
inline constexpr uint32_t kChunkRows = 32;

// Of all batches so far. The GPU counts, so replays of a graph count too.
struct BatchTotals {
  uint64_t batches, ids;  // calls, and the ids they asked for
  uint64_t rows;          // rows listed for them, see gpu/distinct.h
  uint64_t rows_by_gpu;   // of those, rows that the GPU read from the table itself
};

// A batch that copies bring over is cut into pieces, each as many chunks: its first copy begins while rows of
// later pieces are gathered.
inline constexpr uint32_t kMostPieces = 16;

// The words lie apart, so that a write to one disturbs no reader of another; and the flags, because a GPU's
// reads of one line in host memory wait for one another, half a microsecond each.
inline constexpr int64_t kFlagStride = 32;

struct StagingWords {
  alignas(64) uint32_t batch;         // GPU: the number of the batch that is listed, written last, never 0
  alignas(64) uint32_t rows;          // GPU: how many are listed
  alignas(64) uint32_t end;           // GPU: chunks from here on it reads without the workers
  alignas(64) uint32_t piece_chunks;  // GPU: of a batch in pieces; 0 when chunks have flags
  alignas(64) uint32_t failed;        // host: the last batch in which a worker failed
  alignas(64) uint32_t awake;         // host: workers that would see a batch at once
  alignas(64) uint32_t pieces[kMostPieces];  // host: 1 when a piece is in the slots; GPU: 0 before
  alignas(64) BatchTotals totals;            // GPU
};

struct Staging {
  StagingWords* words = nullptr;
  uint32_t* ready = nullptr;  // [chunks, kFlagStride] host: the batch whose rows lie in this chunk's slots
  uint32_t* list = nullptr;   // [capacity] GPU: row numbers, counted from the table's first
  uint8_t* slots = nullptr;   // [capacity, stride] host: those rows
  int64_t capacity = 0;       // rows, a multiple of kChunkRows
  int64_t stride = 0;         // bytes, a multiple of 16
};

NGP_HOST_DEVICE inline uint32_t* ready_flag(const Staging& staging, uint32_t chunk) {
  return staging.ready + chunk * kFlagStride;
}

inline constexpr int64_t whole_chunks(int64_t rows) {
  return (rows + kChunkRows - 1) / kChunkRows * kChunkRows;
}

// Lays a staging area for `capacity` rows out from `memory`; null just counts.
inline Staging lay_out_staging(uint8_t* memory, int64_t capacity, int64_t stride, int64_t* bytes) {
  int64_t at = 0;
  const auto take = [&](int64_t count) {
    uint8_t* const begin = memory == nullptr ? nullptr : memory + at;
    at += (count + 127) / 128 * 128;
    return begin;
  };
  Staging staging;
  staging.capacity = whole_chunks(capacity);
  staging.stride = stride;
  staging.words = reinterpret_cast<StagingWords*>(take(static_cast<int64_t>(sizeof(StagingWords))));
  staging.ready = reinterpret_cast<uint32_t*>(take(staging.capacity / kChunkRows * kFlagStride * 4));
  staging.list = reinterpret_cast<uint32_t*>(take(staging.capacity * 4));
  staging.slots = take(staging.capacity * stride);
  if (bytes != nullptr) *bytes = at;
  return staging;
}

}  // namespace ngram_ple
