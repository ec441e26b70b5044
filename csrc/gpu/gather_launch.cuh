// Which of the two gather kernels runs, and with how many waves.
#pragma once

#include <algorithm>

#include "gpu/gather.cuh"
#include "gpu/staged_gather.cuh"

namespace ngram_ple::gpu {

// The largest power of two up to 16 that divides all of them.
template <class... Numbers>
int64_t common_alignment(Numbers... numbers) {
  const uint64_t bits = (uint64_t{16} | ... | static_cast<uint64_t>(numbers));
  return static_cast<int64_t>(bits & (~bits + 1));
}
inline uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Whether every row carries all its scales where its format's slot has them.
inline bool scales_inside(const TableView& table) {
  const RowFormat& format = table.format;
  return table.scales == table.rows + format.scale_offset && table.scale_stride == table.row_stride &&
         !table.scale_is_bf16 && table.row_stride >= format.slot_bytes;
}

// Bytes of a row that the staged kernel brings to shared memory, 0 when it cannot.
inline int64_t staged_bytes(const TableView& table) {
  const RowFormat& format = table.format;
  if (format.scale_bytes > 0 && !scales_inside(table)) return 0;
  const int64_t alignment = common_alignment(address(table.rows), table.row_stride, format.slot_bytes);
  return alignment == 16 && format.slot_bytes <= kMostStagedBytes ? format.slot_bytes : 0;
}

// Blocks that run on so many multiprocessors at most, where `sms` > 0: one each. A grid that must cover every
// item stays as it is.
inline int64_t limited(int64_t blocks, int sms) {
  return !kGridMustCover && sms > 0 && sms < blocks ? sms : blocks;
}

// Up to so many rows take a wave each.
inline constexpr int64_t kFewRows = 4096;

// Up to so many rows have a block each: two such blocks a multiprocessor of a large GPU. Reads over the bus
// of one multiprocessor would wait for one another.
inline constexpr int64_t kRowsApart = 264;

// Rows a wave of the staged kernel: some 2 KiB, but fewer while that would leave multiprocessors idle, and
// twice as many where that spares a second round of blocks.
inline uint32_t staged_rows_per_wave(int64_t num_rows, int64_t row_bytes) {
  constexpr int64_t kMostRows = 16, kMostWaveBytes = 3072, kWavesWanted = 2048, kOneRound = 4096;
  int64_t rows = kMostRows;
  while (rows > 1 && (rows * row_bytes > kMostWaveBytes || (rows > 4 && num_rows / rows < kWavesWanted)))
    rows /= 2;
  const int64_t waves = num_rows / rows;
  if (rows == kMostRows && waves > kOneRound && waves <= 2 * kOneRound) rows *= 2;
  return static_cast<uint32_t>(rows);
}

template <class Ids, class Codec>
void launch_staged(const char* op, const Ids& ids, int64_t num_rows, const TableView& table, uint32_t chunks,
                   uint8_t* out, Stream stream, int sms) {
  const uint32_t row_bytes = static_cast<uint32_t>(staged_bytes(table));
  const uint32_t rows = staged_rows_per_wave(num_rows, row_bytes);
  const StagedShape shape{num_rows,
                          rows,
                          row_bytes,
                          static_cast<uint32_t>(table.format.scale_offset),
                          make_fast_div(row_bytes / 16),
                          make_fast_div(chunks)};
  const uint32_t waves_per_block = kGatherThreads / device_wave_size();
  const Grid grid{limited(blocks_for_waves((num_rows + rows - 1) / rows, kGatherThreads), sms),
                  kGatherThreads, waves_per_block * shape.wave_bytes(), true};
  launch(op, gather_staged_kernel<Ids, Codec>, grid, stream, ids, table, shape, out);
}

template <class Ids, class Codec>
void launch_gather(const char* op, const Ids& ids, int64_t num_rows, const TableView& table,
                   int64_t out_row_bytes, uint8_t* out, Stream stream, int sms) {
  const uint32_t chunks =
      static_cast<uint32_t>(out_row_bytes / static_cast<int64_t>(sizeof(typename Codec::Word)));
  if constexpr (sizeof(typename Codec::Word) == 16) {
    if (num_rows > kFewRows && staged_bytes(table) > 0) {
      return launch_staged<Ids, Codec>(op, ids, num_rows, table, chunks, out, stream, sms);
    }
  }
  const int threads = num_rows <= kRowsApart ? static_cast<int>(device_wave_size()) : kGatherThreads;
  const Grid grid{limited(blocks_for_waves(num_rows, threads), sms), threads, 0, true};
  launch(op, gather_row_kernel<Ids, Codec>, grid, stream, out, num_rows, chunks, ids, table);
}

}  // namespace ngram_ple::gpu
