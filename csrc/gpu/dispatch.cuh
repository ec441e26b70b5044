// Chooses the codec of a table and an output: the one that reads and writes the widest words that every row,
// scale and output row is aligned to.
#pragma once

#include "gpu/gather_launch.cuh"

namespace ngram_ple::gpu {

template <class Codec>
struct Chosen {
  using Type = Codec;
};

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
  return format.scale_bytes == 0 || scales_inside(table);
}

template <class Start>
void dispatch_copy(int64_t width, Start&& start) {
  if (width == 16) return start(Chosen<CopyCodec<Bytes16>>{});
  if (width == 8) return start(Chosen<CopyCodec<Bytes8>>{});
  if (width == 4) return start(Chosen<CopyCodec<uint32_t>>{});
  if (width == 2) return start(Chosen<CopyCodec<uint16_t>>{});
  start(Chosen<CopyCodec<uint8_t>>{});
}

template <OutType kOut, class Start>
void dispatch_decode(const TableView& table, bool out_is_aligned, Start&& start) {
  constexpr int64_t kValues = Chunk<kOut>::kValues;
  const int64_t rows = common_alignment(address(table.rows), table.row_stride);
  const int64_t scales = common_alignment(address(table.scales), table.scale_stride);
  const bool wide = out_is_aligned && table.format.head_dim % kValues == 0;
  switch (table.format.format) {
    case Format::bf16:
    case Format::fp16:
      if (wide && rows >= 2 * kValues) return start(Chosen<ConvertCodec<kOut>>{});
      break;
    case Format::fp32:
      if (wide && rows == 16) return start(Chosen<ConvertCodec<kOut>>{});
      break;
    case Format::fp8:
      if (wide && rows >= kValues) return start(Chosen<Fp8Codec<false, kOut>>{});
      break;
    case Format::fp8_rowwise:
      if (wide && rows >= kValues && scales >= (table.scale_is_bf16 ? 2 : 4))
        return start(Chosen<Fp8Codec<true, kOut>>{});
      break;
    case Format::nvfp4:
      if (wide && rows >= kValues / 2) return start(Chosen<Nvfp4Codec<kOut>>{});
      break;
  }
  start(Chosen<ScalarCodec<kOut>>{});
}

template <class Start>
void dispatch_codec(const TableView& table, OutType out_type, const uint8_t* out, Start&& start) {
  const int64_t out_row_bytes = table.out_row_bytes(out_type);
  if (is_copy(table, out_type)) {
    return dispatch_copy(common_alignment(address(table.rows), table.row_stride, address(out), out_row_bytes),
                         start);
  }
  const bool aligned = common_alignment(address(out), out_row_bytes) == 16;
  switch (out_type) {
    case OutType::bf16:
      return dispatch_decode<OutType::bf16>(table, aligned, start);
    case OutType::fp16:
      return dispatch_decode<OutType::fp16>(table, aligned, start);
    case OutType::fp32:
      return dispatch_decode<OutType::fp32>(table, aligned, start);
    case OutType::bytes:
      return start(Chosen<ScalarCodec<OutType::bytes>>{});
  }
}

// Writes the rows that `ids` asks for; an Ids says in ids(row) what row `row` of the output shows.
template <class Ids>
void gather(const char* op, const Ids& ids, int64_t num_rows, const TableView& table, OutType out_type,
            uint8_t* out, Stream stream, int sms = 0) {
  if (num_rows <= 0) return;
  dispatch_codec(table, out_type, out, [&](auto chosen) {
    launch_gather<Ids, typename decltype(chosen)::Type>(op, ids, num_rows, table,
                                                        table.out_row_bytes(out_type), out, stream, sms);
  });
}

}  // namespace ngram_ple::gpu
