// Decoding rows that already have addresses: one entry point a (format, output type) pair.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/table_view.h"

namespace ngram_ple::cpu {

// Addresses of one row and its own scales. A null row is one this rank does not own: it decodes to zeros.
struct RowAddress {
  const uint8_t* row;
  const uint8_t* scale;
};

struct DecodeArgs {
  RowFormat format;
  float global_scale;  // 1 when the format has none
  bool scale_is_bf16;
};

// Decodes `count` rows to out, out + out_row_bytes, ...
using RowDecoder = void (*)(const DecodeArgs&, const RowAddress* rows, int64_t count, uint8_t* out);

// What every decoder does: zeros for a row that is not owned, decode_row(address, to) for the others.
template <class DecodeRow>
inline void decode_each(const RowAddress* rows, int64_t count, size_t out_row_bytes, uint8_t* out,
                        const DecodeRow& decode_row) {
  for (int64_t i = 0; i < count; ++i, out += out_row_bytes) {
    if (rows[i].row == nullptr) {
      std::memset(out, 0, out_row_bytes);
    } else {
      decode_row(rows[i], out);
    }
  }
}

// The scale of one fp8-rowwise row.
float load_row_scale(const DecodeArgs& args, const RowAddress& address);

RowDecoder find_row_decoder(Format format, OutType out);

// One a format family, in the file that owns the arithmetic.
RowDecoder find_plain_decoder(Format format, OutType out);
RowDecoder find_fp8_decoder(OutType out);
RowDecoder find_nvfp4_decoder(OutType out);

}  // namespace ngram_ple::cpu
