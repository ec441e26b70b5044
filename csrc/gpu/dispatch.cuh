// Chooses the codec of a table and an output, and launches the gather kernel with it.
#pragma once

#include <algorithm>

#include "gpu/gather.cuh"

namespace ngram_ple::gpu {

// Up to so many rows take a wave each: then a wave's time is latency, and no lane should do more than it
// must.
inline constexpr int64_t kFewRows = 2048;

// Beyond, short rows share a wave's setup.
inline uint32_t rows_per_wave(int64_t num_rows, int64_t chunks_per_row) {
  constexpr int64_t kLongRow = 160;
  if (chunks_per_row >= kLongRow) return 1;
  return num_rows <= 8 * kFewRows ? 4 : 8;
}

template <class Codec, class Ids>
void launch_gather(const char* op, const Ids& ids, int64_t num_rows, const TableView& table,
                   int64_t out_row_bytes, uint8_t* out, Stream stream) {
  const int64_t chunks = out_row_bytes / Codec::kOutBytes;
  if (num_rows <= kFewRows) {
    launch(op, gather_row_kernel<Ids, Codec>, blocks_for_waves(num_rows, kGatherThreads), kGatherThreads,
           stream, ids, table, num_rows, static_cast<uint32_t>(chunks), out);
    return;
  }
  const uint32_t rows = rows_per_wave(num_rows, chunks);
  const int64_t blocks = blocks_for_waves((num_rows + rows - 1) / rows, kGatherThreads);
  const GatherShape shape{num_rows, rows, make_fast_div(static_cast<uint32_t>(chunks))};
  launch(op, gather_rows_kernel<Ids, Codec>, blocks, kGatherThreads, stream, ids, table, shape, out);
}

// The largest power of two up to 16 that divides all of them.
template <class... Numbers>
int64_t common_alignment(Numbers... numbers) {
  const uint64_t bits = (uint64_t{16} | ... | static_cast<uint64_t>(numbers));
  return static_cast<int64_t>(bits & (~bits + 1));
}
inline uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Whether the output's bytes stand in the table just so.
inline bool is_copy(const TableView& table, OutType out_type) {
  const RowFormat& format = table.format;
  switch (out_type) {
    case OutType::bf16:
      return format.format == Format::bf16;
    case OutType::fp16:
      return format.format == Format::fp16;
    case OutType::fp32:
      return format.format == Format::fp32;
    case OutType::bytes:
      break;
  }
  const bool scales_inside = table.scales == table.rows + format.scale_offset &&
                             table.scale_stride == table.row_stride && !table.scale_is_bf16 &&
                             table.row_stride >= format.slot_bytes;
  return format.scale_bytes == 0 || scales_inside;
}

template <OutType kOut, class Launch>
bool dispatch_wide(const TableView& table, Launch&& start) {
  constexpr int64_t kValues = Chunk<kOut>::kValues;
  const int64_t rows = common_alignment(table.rows == nullptr ? 0 : address(table.rows), table.row_stride);
  const int64_t scales = common_alignment(address(table.scales), table.scale_stride);
  if (table.format.head_dim % kValues != 0) return false;
  switch (table.format.format) {
    case Format::bf16:
      if (rows < 2 * kValues) return false;
      if constexpr (kOut != OutType::bf16) start(ConvertCodec<Format::bf16, kOut>{});
      return true;
    case Format::fp16:
      if (rows < 2 * kValues) return false;
      if constexpr (kOut != OutType::fp16) start(ConvertCodec<Format::fp16, kOut>{});
      return true;
    case Format::fp32:
      if (rows < 16) return false;
      if constexpr (kOut != OutType::fp32) start(ConvertCodec<Format::fp32, kOut>{});
      return true;
    case Format::fp8:
      if (rows < kValues) return false;
      start(Fp8Codec<false, kOut>{});
      return true;
    case Format::fp8_rowwise:
      if (rows < kValues || scales < (table.scale_is_bf16 ? 2 : 4)) return false;
      start(Fp8Codec<true, kOut>{});
      return true;
    case Format::nvfp4:
      if (rows < kValues / 2) return false;
      start(Nvfp4Codec<kOut>{});
      return true;
  }
  return false;
}

// Calls start(codec) with the codec that reads and writes the widest words that everything is aligned to.
template <class Launch>
void dispatch_codec(const TableView& table, OutType out_type, const uint8_t* out, Launch&& start) {
  const int64_t out_row_bytes = table.out_row_bytes(out_type);
  if (is_copy(table, out_type)) {
    switch (common_alignment(address(table.rows), table.row_stride, address(out), out_row_bytes)) {
      case 16:
        return start(CopyCodec<Bytes16>{});
      case 8:
        return start(CopyCodec<Bytes8>{});
      case 4:
        return start(CopyCodec<uint32_t>{});
      case 2:
        return start(CopyCodec<uint16_t>{});
      default:
        return start(CopyCodec<uint8_t>{});
    }
  }
  const bool wide = common_alignment(address(out), out_row_bytes) == 16;
  switch (out_type) {
    case OutType::bf16:
      if (!wide || !dispatch_wide<OutType::bf16>(table, start)) start(ScalarCodec<OutType::bf16>{});
      return;
    case OutType::fp16:
      if (!wide || !dispatch_wide<OutType::fp16>(table, start)) start(ScalarCodec<OutType::fp16>{});
      return;
    case OutType::fp32:
      if (!wide || !dispatch_wide<OutType::fp32>(table, start)) start(ScalarCodec<OutType::fp32>{});
      return;
    case OutType::bytes:
      start(ScalarCodec<OutType::bytes>{});
  }
}

// Writes the rows that `ids` asks for; an Ids says in numbers(row) -> id what row `row` of the output shows.
template <class Ids>
void gather(const char* op, const Ids& ids, int64_t num_rows, const TableView& table, OutType out_type,
            uint8_t* out, Stream stream) {
  if (num_rows <= 0) return;
  dispatch_codec(table, out_type, out, [&](auto codec) {
    launch_gather<decltype(codec)>(op, ids, num_rows, table, table.out_row_bytes(out_type), out, stream);
  });
}

}  // namespace ngram_ple::gpu
