// To fp8 (E4M3fn) rows: under the table's scale, or each row under its own.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/encoding.h"
#include "cpu/encode.h"
#include "cpu/multiversion.h"

namespace ngram_ple::cpu {
namespace {

NGP_MULTIVERSION void codes_of(const float* NGP_RESTRICT values, int64_t count, float factor,
                               uint8_t* NGP_RESTRICT codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = float_to_e4m3(values[i] * factor);
}

}  // namespace

void encode_fp8(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows) {
  const int64_t total = count * args.to.head_dim, from_bytes = args.from == Format::fp32 ? 4 : 2;
  const float factor = row_factor(args.global_scale);
  alignas(64) float wide[kEncodeChunk];
  for (int64_t at = 0; at < total; at += kEncodeChunk) {
    const int64_t n = std::min(kEncodeChunk, total - at);
    widen(args.from, values + at * from_bytes, n, wide);
    codes_of(wide, n, factor, rows + at);
  }
}

void encode_fp8_rowwise(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                        uint8_t* scales) {
  const int64_t head_dim = args.to.head_dim, row_bytes = head_dim * (args.from == Format::fp32 ? 4 : 2);
  std::vector<float> wide(static_cast<size_t>(head_dim));
  for (int64_t row = 0; row < count; ++row, values += row_bytes, rows += head_dim) {
    const float scale =
        row_scale_of(largest_magnitude(args.from, values, head_dim, true), args.scale_is_bf16);
    widen(args.from, values, head_dim, wide.data());
    codes_of(wide.data(), head_dim, row_factor(scale), rows);
    if (args.scale_is_bf16) {
      const uint16_t bits = float_to_bf16(scale);
      std::memcpy(scales, &bits, sizeof bits);
      scales += sizeof bits;
    } else {
      std::memcpy(scales, &scale, sizeof scale);
      scales += sizeof scale;
    }
  }
}

}  // namespace ngram_ple::cpu
