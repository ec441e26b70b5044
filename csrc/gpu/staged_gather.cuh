// The kernel of many rows: a wave brings its rows to shared memory whole, 16 bytes a lane at a time and none
// of them through a register, then decodes them from there. Where the device copies in bulk, a plain copy
// leaves as one instruction.
#pragma once

#include "core/fast_div.h"
#include "gpu/gather.cuh"

namespace ngram_ple::gpu {

// Most shared memory of a wave.
inline constexpr int64_t kMostStagedBytes = 8192;

struct StagedShape {
  int64_t num_rows;
  uint32_t rows_per_wave;  // at most 32, the smallest wave
  uint32_t row_bytes;      // staged of each row: values, and scales where the slot has them; a multiple of 16
  uint32_t scale_offset;   // inside them
  FastDiv<uint32_t> pieces_per_row;  // row_bytes / 16
  FastDiv<uint32_t> chunks_per_row;

  NGP_HOST_DEVICE uint32_t wave_bytes() const { return rows_per_wave * row_bytes; }
};

// The parts of equal rows, laid out one after another, that a lane takes: every wave_size()-th.
class LaneParts {
 public:
  explicit NGP_DEVICE LaneParts(FastDiv<uint32_t> per_row) : per_row_(per_row.divisor) {
    const auto first = divide(lane_index(), per_row), step = divide(wave_size(), per_row);
    row_ = first.quotient, part_ = first.remainder;
    step_rows_ = step.quotient, step_parts_ = step.remainder;
  }
  NGP_DEVICE uint32_t row() const { return row_; }
  NGP_DEVICE uint32_t part() const { return part_; }
  NGP_DEVICE void advance() {
    row_ += step_rows_;
    part_ += step_parts_;
    const bool next = part_ >= per_row_;
    part_ -= next ? per_row_ : 0;
    row_ += next ? 1 : 0;
  }

 private:
  uint32_t per_row_, row_, part_, step_rows_, step_parts_;
};

// Row l of the stage from lane l's address; rows without an address stay as they are.
NGP_DEVICE void stage_rows(uint8_t* stage, const StagedShape& shape, const uint8_t* mine, uint32_t rows) {
  constexpr int kBatch = 5;
  LaneParts pieces(shape.pieces_per_row);
  const uint32_t wave = wave_size(), end = rows * shape.pieces_per_row.divisor;
  SharedAddress to = shared_address(stage + 16 * lane_index());
  for (uint32_t start = 0; start < end; start += wave * kBatch) {
    const uint8_t* from[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint8_t* row = shuffle(mine, pieces.row() < wave ? pieces.row() : 0);
      const bool wanted = start + i * wave + lane_index() < end && row != nullptr;
      from[i] = wanted ? row + 16 * pieces.part() : nullptr;
      pieces.advance();
    }
    load_to_shared(to, 16 * wave, from);
    to += 16 * wave * kBatch;
  }
  await_loads();
  sync_wave();
}

NGP_DEVICE uint64_t lowest_bits(uint32_t count) { return (uint64_t{1} << count) - 1; }

// A plain copy: rows that the table does not own become zeros, then the stage leaves as it is.
NGP_DEVICE void store_stage(uint8_t* stage, const StagedShape& shape, uint32_t rows, uint64_t owned,
                            uint8_t* to) {
  if (owned != lowest_bits(rows)) {
    for (uint32_t row = 0; row < rows; ++row) {
      if (owned >> row & 1) continue;
      for (uint32_t at = 16 * lane_index(); at < shape.row_bytes; at += 16 * wave_size()) {
        store_shared(stage + row * shape.row_bytes + at, Bytes16{});
      }
    }
  }
  publish_to_bulk();
  sync_wave();
  if (lane_index() == 0) bulk_store(to, stage, rows * shape.row_bytes);
}

// Without a branch, so that the loads and decodings of a batch overlap: lanes past the end read the last
// row again, and rows that the table does not own (kEvery: there are none) are read as they lie and then
// replaced.
template <bool kEvery, class Codec>
NGP_DEVICE void decode_rows(const Codec& codec, const uint8_t* stage, const StagedShape& shape, uint32_t rows,
                            uint64_t owned, uint8_t* to) {
  constexpr int kBatch = 5;
  constexpr uint32_t kBytes = sizeof(typename Codec::Word);
  const uint32_t wave = wave_size(), last = rows - 1, held = static_cast<uint32_t>(owned);
  LaneParts parts(shape.chunks_per_row);
  to += lane_index() * kBytes;
  int32_t left = static_cast<int32_t>(rows * shape.chunks_per_row.divisor);  // chunks from the lane's own on
  for (left -= static_cast<int32_t>(lane_index()); left > 0; left -= static_cast<int32_t>(wave * kBatch)) {
    typename Codec::Raw raw[kBatch];
    uint32_t row[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      row[i] = parts.row() < last ? parts.row() : last;
      const uint8_t* at = stage + row[i] * shape.row_bytes;
      raw[i] = codec.template load<InShared>(RowAddress{at, at + shape.scale_offset}, parts.part());
      parts.advance();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const auto word = decode_or_zero(codec, kEvery || (held >> row[i] & 1), raw[i]);
      if (static_cast<int32_t>(i * wave) < left) store_once(to + i * wave * kBytes, word);
    }
    to += wave * kBatch * kBytes;
  }
}

template <class Codec>
NGP_DEVICE void decode_stage(const Codec& codec, const uint8_t* stage, const StagedShape& shape,
                             uint32_t rows, uint64_t owned, uint8_t* to) {
  if (owned == lowest_bits(rows)) {
    decode_rows<true>(codec, stage, shape, rows, owned, to);
  } else {
    decode_rows<false>(codec, stage, shape, rows, owned, to);
  }
}

template <class Ids, class Codec>
NGP_RESIDENT_KERNEL(kGatherThreads, Ids::kResidentBlocks)
gather_staged_kernel(Ids ids, TableView table, StagedShape shape, uint8_t* out) {
  await_predecessors();
  const uint32_t lane = lane_index();
  uint8_t* stage = shared_memory() + thread_index() / wave_size() * shape.wave_bytes();
  const Codec codec(table);
  for (int64_t first = wave_index() * shape.rows_per_wave; first < shape.num_rows;
       first = next_item(first, num_waves() * shape.rows_per_wave, shape.num_rows)) {
    const int64_t left = shape.num_rows - first;
    const uint32_t rows = left < shape.rows_per_wave ? static_cast<uint32_t>(left) : shape.rows_per_wave;
    const int64_t id = ids(first + (lane < rows ? lane : rows - 1));
    const bool held = lane < rows && table.owns(id);
    const uint64_t owned = ballot(held);
    stage_rows(stage, shape, held ? address_of(ids, table, id).values : nullptr, rows);
    uint8_t* to =
        out + first * shape.chunks_per_row.divisor * static_cast<int64_t>(sizeof(typename Codec::Word));
    if (Codec::kIsCopy && has_bulk_copy()) {
      store_stage(stage, shape, rows, owned, to);
    } else {
      decode_stage(codec, stage, shape, rows, owned, to);
    }
    sync_wave();  // the stage is free again
  }
}

}  // namespace ngram_ple::gpu
