// The kernel of many rows: a wave brings its rows to shared memory whole, then decodes them from there. Where
// the device copies in bulk, that costs one instruction a row and no register, and a plain copy leaves the
// same way.
#pragma once

#include "core/fast_div.h"
#include "gpu/bulk_copy.h"
#include "gpu/gather.cuh"

namespace ngram_ple::gpu {

// Most shared memory of a wave.
inline constexpr int64_t kMostStagedBytes = 8192;

struct StagedShape {
  int64_t num_rows;
  uint32_t rows_per_wave;  // at most kSmallestWave
  uint32_t row_bytes;      // staged of each row: values, and scales where the slot has them; a multiple of 16
  uint32_t scale_offset;   // inside them
  FastDiv<uint32_t> pieces_per_row;  // row_bytes / 16
  FastDiv<uint32_t> chunks_per_row;

  NGP_HOST_DEVICE uint32_t wave_bytes() const { return rows_per_wave * row_bytes; }
};

// Row l of the stage from lane l's address, 16 bytes a lane at a time; rows without an address stay as they
// are.
NGP_DEVICE void stage_by_lanes(uint8_t* stage, const StagedShape& shape, const uint8_t* mine, uint32_t rows) {
  constexpr int kBatch = 4;
  const uint32_t wave = wave_size(), lane = lane_index(), pieces = rows * shape.pieces_per_row.divisor;
  for (uint32_t start = 0; start < pieces; start += wave * kBatch) {
    Bytes16 bytes[kBatch];
    bool held[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t piece = start + i * wave + lane;
      const auto place = divide(piece, shape.pieces_per_row);
      const uint8_t* from = shuffle(mine, place.quotient < wave ? place.quotient : 0);
      held[i] = piece < pieces && from != nullptr;
      if (held[i]) bytes[i] = load_once<Bytes16>(from + 16 * place.remainder);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (held[i]) store_shared(stage + 16 * (start + i * wave + lane), bytes[i]);
    }
  }
  sync_wave();
}

NGP_DEVICE void stage_in_bulk(uint8_t* stage, const StagedShape& shape, const uint8_t* mine, uint32_t rows,
                              uint64_t owned, ArrivalCount* arrivals, uint32_t parity) {
  const uint32_t lane = lane_index();
  if (lane == 0) expect_arrivals(arrivals, count_ones(owned) * shape.row_bytes);
  sync_wave();
  if (lane < rows && mine != nullptr)
    bulk_load(stage + lane * shape.row_bytes, mine, shape.row_bytes, arrivals);
  await_arrivals(arrivals, parity);
}

// A plain copy: rows that the table does not own become zeros, then the stage leaves as it is.
NGP_DEVICE void store_stage(uint8_t* stage, const StagedShape& shape, uint32_t rows, uint64_t owned,
                            uint8_t* to) {
  for (uint32_t row = 0; row < rows; ++row) {
    if (owned >> row & 1) continue;
    for (uint32_t at = 16 * lane_index(); at < shape.row_bytes; at += 16 * wave_size()) {
      store_shared(stage + row * shape.row_bytes + at, Bytes16{});
    }
  }
  publish_to_bulk();
  sync_wave();
  if (lane_index() == 0) bulk_store(to, stage, rows * shape.row_bytes);
}

// Without a branch, so that the loads and decodings of a batch overlap: lanes past the end read the last
// chunk again, and rows that the table does not own are read as they lie and then replaced.
template <class Codec>
NGP_DEVICE void decode_stage(const Codec& codec, const uint8_t* stage, const StagedShape& shape,
                             uint32_t rows, uint64_t owned, uint8_t* to) {
  constexpr int kBatch = 5;
  constexpr uint32_t kBytes = sizeof(typename Codec::Word);
  const uint32_t chunks = rows * shape.chunks_per_row.divisor, held = static_cast<uint32_t>(owned);
  for (uint32_t first = lane_index(); first - lane_index() < chunks; first += wave_size() * kBatch) {
    typename Codec::Raw raw[kBatch];
    uint32_t row[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t chunk = first + i * wave_size();
      const auto place = divide(chunk < chunks ? chunk : chunks - 1, shape.chunks_per_row);
      row[i] = place.quotient;
      const uint8_t* at = stage + place.quotient * shape.row_bytes;
      raw[i] = codec.template load<InShared>(RowAddress{at, at + shape.scale_offset}, place.remainder);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t chunk = first + i * wave_size();
      const auto word = decode_or_zero(codec, held >> row[i] & 1, raw[i]);
      if (chunk < chunks) store_once(to + chunk * kBytes, word);
    }
  }
}

template <class Ids, class Codec>
NGP_KERNEL(kGatherThreads)
gather_staged_kernel(Ids ids, TableView table, StagedShape shape, uint8_t* out) {
  const uint32_t lane = lane_index(), wave_in_block = thread_index() / wave_size();
  const uint32_t waves = block_threads() / wave_size();
  uint8_t* stage = shared_memory() + wave_in_block * shape.wave_bytes();
  auto* arrivals =
      reinterpret_cast<ArrivalCount*>(shared_memory() + waves * shape.wave_bytes()) + wave_in_block;
  const bool bulk = has_bulk_copy();
  if (bulk && lane == 0) init_arrivals(arrivals);
  const Codec codec(table);

  uint32_t parity = 0;
  for (int64_t first = wave_index() * shape.rows_per_wave; first < shape.num_rows;
       first += num_waves() * shape.rows_per_wave) {
    const int64_t left = shape.num_rows - first;
    const uint32_t rows = left < shape.rows_per_wave ? static_cast<uint32_t>(left) : shape.rows_per_wave;
    const int64_t id = ids(first + (lane < rows ? lane : rows - 1));
    const bool held = lane < rows && table.owns(id);
    const uint8_t* mine = held ? address_of(table, id).values : nullptr;
    const uint64_t owned = ballot(held);
    if (bulk) {
      stage_in_bulk(stage, shape, mine, rows, owned, arrivals, parity);
    } else {
      stage_by_lanes(stage, shape, mine, rows);
    }
    parity ^= 1;

    uint8_t* to =
        out + first * shape.chunks_per_row.divisor * static_cast<int64_t>(sizeof(typename Codec::Word));
    if (Codec::kIsCopy && bulk) {
      store_stage(stage, shape, rows, owned, to);
    } else {
      decode_stage(codec, stage, shape, rows, owned, to);
    }
    sync_wave();  // the stage is free again
  }
}

}  // namespace ngram_ple::gpu
