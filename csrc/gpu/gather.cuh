// Rows of a table, side by side in the output: the kernel under lookup, embed and decode. A wave takes a few
// consecutive rows; each lane finds one row's number, then the lanes share out the chunks of all of them,
// which are contiguous in the output.
#pragma once

#include "core/fast_div.h"
#include "gpu/codecs.cuh"
#include "gpu/scalar_codec.cuh"

namespace ngram_ple::gpu {

inline constexpr int kGatherThreads = 128;

struct GatherShape {
  int64_t num_rows;
  uint32_t rows_per_wave;  // at most kSmallestWave
  FastDiv<uint32_t> chunks_per_row;
};

template <int64_t kBytes>
NGP_DEVICE void store_zeros(uint8_t* to) {
  if constexpr (kBytes == 16) store_once(to, Bytes16{});
  if constexpr (kBytes == 8) store_once(to, Bytes8{});
  if constexpr (kBytes == 4) store_once(to, uint32_t{0});
  if constexpr (kBytes == 2) store_once(to, uint16_t{0});
  if constexpr (kBytes == 1) store_once(to, uint8_t{0});
}

template <class Ids, class Codec>
NGP_KERNEL(kGatherThreads)
gather_kernel(Ids ids, TableView table, GatherShape shape, uint8_t* out) {
  const uint32_t wave = wave_size(), lane = lane_index();
  const float global_scale = table.global_scale == nullptr ? 1.0f : *table.global_scale;
  for (int64_t first = wave_index() * shape.rows_per_wave; first < shape.num_rows;
       first += num_waves() * shape.rows_per_wave) {
    const int64_t left = shape.num_rows - first;
    const uint32_t rows = left < shape.rows_per_wave ? static_cast<uint32_t>(left) : shape.rows_per_wave;
    const int64_t id = ids(first + (lane < rows ? lane : rows - 1));
    const int64_t mine = table.owns(id) ? id - table.row_start : -1;

    uint8_t* to = out + first * shape.chunks_per_row.divisor * Codec::kOutBytes;
    const uint32_t chunks = rows * shape.chunks_per_row.divisor;
    for (uint32_t start = 0; start < chunks; start += wave * Codec::kBatch) {
      typename Codec::Raw raw[Codec::kBatch];
      bool owned[Codec::kBatch];
#pragma unroll
      for (int i = 0; i < Codec::kBatch; ++i) {
        const uint32_t chunk = start + i * wave + lane;
        const auto at = divide(chunk, shape.chunks_per_row);
        const int64_t row = shuffle(mine, at.quotient < wave ? at.quotient : 0);
        owned[i] = chunk < chunks && row >= 0;
        if (owned[i]) raw[i] = Codec::load(table, row, at.remainder);
      }
#pragma unroll
      for (int i = 0; i < Codec::kBatch; ++i) {
        const uint32_t chunk = start + i * wave + lane;
        if (chunk >= chunks) continue;
        uint8_t* at = to + static_cast<int64_t>(chunk) * Codec::kOutBytes;
        if (owned[i]) {
          Codec::emit(global_scale, raw[i], at);
        } else {
          store_zeros<Codec::kOutBytes>(at);
        }
      }
    }
  }
}

}  // namespace ngram_ple::gpu
