// Rows of numbers to rows as a table of some format stores them, on one thread.
#pragma once

#include <cstdint>

#include "core/row_format.h"

namespace ngram_ple::cpu {

struct EncodeArgs {
  Format from;  // bf16, fp16 or fp32
  RowFormat to;
  float global_scale;  // 1 when the format has none
  bool scale_is_bf16;  // of fp8-rowwise scales: rounded to bf16 before use, and stored so
};

// Encodes `count` contiguous rows: `to.row_bytes` each to `rows`, and to `scales` a row's own ones
// (fp8-rowwise one bf16 or fp32, nvfp4 head_dim / 16 E4M3 codes). The arithmetic is core/encoding.h's.
void encode(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows, uint8_t* scales);

// The largest magnitude among `count` values of a plain format: infinite or NaN where a value is, unless
// `finite_only` leaves those out.
float largest_magnitude(Format from, const uint8_t* values, int64_t count, bool finite_only);

// --- For the encoders ---
// Values of a plain format as fp32.
void widen(Format from, const uint8_t* values, int64_t count, float* out);

// Values that are widened and encoded at a time: they stay in a core's first cache. Whole blocks of nvfp4.
inline constexpr int64_t kEncodeChunk = 2048;

void encode_plain(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows);
void encode_fp8(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows);
void encode_fp8_rowwise(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                        uint8_t* scales);
void encode_nvfp4(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                  uint8_t* scales);

}  // namespace ngram_ple::cpu
