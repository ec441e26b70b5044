// To fp8 (E4M3fn) rows: under the table's scale, or each row under its own.
#include <algorithm>
#include <cstring>

#include "core/encoding.h"
#include "cpu/encode.h"
#include "cpu/multiversion.h"
#include "cpu/value_pairs.h"

namespace ngram_ple::cpu {
namespace {

NGP_MULTIVERSION void codes_by_loop(const float* NGP_RESTRICT values, int64_t count, float factor,
                                    uint8_t* NGP_RESTRICT codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = float_to_e4m3(values[i] * factor);
}

#ifdef NGP_HAS_AVX2_PATH
constexpr int64_t kStep = 32;

// At least kStep values. The last ones are encoded twice where they are no whole steps.
template <Format from>
NGP_AVX2 void codes_by_avx2(const uint8_t* values, int64_t count, float factor, uint8_t* codes) {
  constexpr int64_t kBytes = from == Format::fp32 ? 4 : 2;
  const __m256 by = _mm256_set1_ps(factor);
  for (int64_t next = 0; next < count; next += kStep) {
    const int64_t at = std::min(next, count - kStep);
    const __m256i low = e4m3_codes(times(load_pairs<from>(values + at * kBytes), by));
    const __m256i high = e4m3_codes(times(load_pairs<from>(values + (at + kStep / 2) * kBytes), by));
    // packing goes by halves of 16 bytes: back to the values' order
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + at), bytes);
  }
}
#endif

void codes_of_floats(const float* values, int64_t count, float factor, uint8_t* codes) {
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2() && count >= kStep) {
    return codes_by_avx2<Format::fp32>(reinterpret_cast<const uint8_t*>(values), count, factor, codes);
  }
#endif
  codes_by_loop(values, count, factor, codes);
}

void codes_of(Format from, const uint8_t* values, int64_t count, float factor, uint8_t* codes) {
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2() && count >= kStep && from == Format::bf16) {
    return codes_by_avx2<Format::bf16>(values, count, factor, codes);
  }
#endif
  const int64_t bytes = from == Format::fp32 ? 4 : 2;
  alignas(64) float wide[kEncodeChunk];
  for (int64_t at = 0; at < count; at += kEncodeChunk) {
    const int64_t n = std::min(kEncodeChunk, count - at);
    widen(from, values + at * bytes, n, wide);
    codes_of_floats(wide, n, factor, codes + at);
  }
}

}  // namespace

void encode_fp8(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows) {
  codes_of(args.from, values, count * args.to.head_dim, row_factor(args.global_scale), rows);
}

void encode_fp8_rowwise(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                        uint8_t* scales) {
  const int64_t head_dim = args.to.head_dim, row_bytes = head_dim * (args.from == Format::fp32 ? 4 : 2);
  constexpr int64_t kRows = 16;  // a step for all of them before the next: what one waits for, another fills
  float factors[kRows];
  for (int64_t row = 0; row < count; row += kRows) {
    const int64_t n = std::min(kRows, count - row);
    for (int64_t i = 0; i < n; ++i) {
      factors[i] = largest_magnitude(args.from, values + (row + i) * row_bytes, head_dim, true);
    }
    for (int64_t i = 0; i < n; ++i) {
      const float scale = row_scale_of(factors[i], args.scale_is_bf16);
      factors[i] = row_factor(scale);
      if (args.scale_is_bf16) {
        const uint16_t bits = float_to_bf16(scale);
        std::memcpy(scales + (row + i) * 2, &bits, sizeof bits);
      } else {
        std::memcpy(scales + (row + i) * 4, &scale, sizeof scale);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      codes_of(args.from, values + (row + i) * row_bytes, head_dim, factors[i], rows + (row + i) * head_dim);
    }
  }
}

}  // namespace ngram_ple::cpu
