// Rows of a table, side by side in the output: the kernels under lookup, embed and decode.
#pragma once

#include "core/fast_div.h"
#include "gpu/codecs.cuh"
#include "gpu/scalar_codec.cuh"

namespace ngram_ple::gpu {

inline constexpr int kGatherThreads = 128;

// Writes one chunk of the output; rows that the table does not own are zeros, and nothing is read for them.
template <class Codec>
NGP_DEVICE void emit_or_clear(bool owned, float global_scale, const typename Codec::Raw& raw, uint8_t* to) {
  if (owned) {
    Codec::emit(global_scale, raw, to);
  } else {
    store_zeros<Codec::kOutBytes>(to);
  }
}

NGP_DEVICE float global_scale_of(const TableView& table) {
  return table.global_scale == nullptr ? 1.0f : *table.global_scale;
}

// One row a wave: the shortest way from ids to output, for few rows.
template <class Ids, class Codec>
NGP_KERNEL(kGatherThreads)
gather_row_kernel(Ids ids, TableView table, int64_t num_rows, uint32_t chunks, uint8_t* out) {
  const float global_scale = global_scale_of(table);
  for (int64_t row = wave_index(); row < num_rows; row += num_waves()) {
    const int64_t id = ids(row);
    const bool owned = table.owns(id);
    const RowAddress at = owned ? address_of(table, id) : RowAddress{};
    uint8_t* to = out + row * chunks * Codec::kOutBytes;
    for (uint32_t chunk = lane_index(); chunk < chunks; chunk += wave_size()) {
      typename Codec::Raw raw{};
      if (owned) raw = Codec::load(table, at, chunk);
      emit_or_clear<Codec>(owned, global_scale, raw, to + static_cast<int64_t>(chunk) * Codec::kOutBytes);
    }
  }
}

struct GatherShape {
  int64_t num_rows;
  uint32_t rows_per_wave;  // at most kSmallestWave
  FastDiv<uint32_t> chunks_per_row;
};

// Several consecutive rows a wave: each lane finds one row's number, then the lanes share out the chunks of
// all the rows, which are contiguous in the output. A lane has Codec::kBatch loads under way.
template <class Ids, class Codec>
NGP_KERNEL(kGatherThreads)
gather_rows_kernel(Ids ids, TableView table, GatherShape shape, uint8_t* out) {
  const uint32_t wave = wave_size(), lane = lane_index();
  const float global_scale = global_scale_of(table);
  for (int64_t first = wave_index() * shape.rows_per_wave; first < shape.num_rows;
       first += num_waves() * shape.rows_per_wave) {
    const int64_t left = shape.num_rows - first;
    const uint32_t rows = left < shape.rows_per_wave ? static_cast<uint32_t>(left) : shape.rows_per_wave;
    const int64_t id = ids(first + (lane < rows ? lane : rows - 1));
    const RowAddress mine = table.owns(id) ? address_of(table, id) : RowAddress{};

    uint8_t* to = out + first * shape.chunks_per_row.divisor * Codec::kOutBytes;
    const uint32_t chunks = rows * shape.chunks_per_row.divisor;
    for (uint32_t start = 0; start < chunks; start += wave * Codec::kBatch) {
      typename Codec::Raw raw[Codec::kBatch];
      bool owned[Codec::kBatch];
#pragma unroll
      for (int i = 0; i < Codec::kBatch; ++i) {
        const uint32_t chunk = start + i * wave + lane;
        const auto place = divide(chunk, shape.chunks_per_row);
        const RowAddress at =
            shuffle_address<Codec::kHasScales>(mine, place.quotient < wave ? place.quotient : 0);
        owned[i] = chunk < chunks && at.values != nullptr;
        if (owned[i]) raw[i] = Codec::load(table, at, place.remainder);
      }
#pragma unroll
      for (int i = 0; i < Codec::kBatch; ++i) {
        const uint32_t chunk = start + i * wave + lane;
        uint8_t* at = to + static_cast<int64_t>(chunk) * Codec::kOutBytes;
        if (chunk < chunks) emit_or_clear<Codec>(owned[i], global_scale, raw[i], at);
      }
    }
  }
}

}  // namespace ngram_ple::gpu
