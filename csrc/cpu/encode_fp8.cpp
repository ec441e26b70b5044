// To fp8 (E4M3fn) rows: under the table's scale, or each row under its own.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/encoding.h"
#include "cpu/encode.h"
#include "cpu/multiversion.h"
#include "cpu/x86.h"

namespace ngram_ple::cpu {
namespace {

NGP_MULTIVERSION void codes_by_loop(const float* NGP_RESTRICT values, int64_t count, float factor,
                                    uint8_t* NGP_RESTRICT codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = float_to_e4m3(values[i] * factor);
}

#ifdef NGP_HAS_AVX2_PATH
// float_to_e4m3 of eight values, one a lane.
NGP_AVX2 inline __m256i e4m3_codes(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i full = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i magnitude = _mm256_min_epi32(full, _mm256_set1_epi32(0x43E00000));
  const __m256 shifted = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p14f));
  const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x46800000));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(magnitude, odd), _mm256_set1_epi32(0x7FFFF - (120 << 23)));
  const __m256i normal = _mm256_srli_epi32(rounded, 20);
  const __m256i is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3C800000), magnitude);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i code = _mm256_blendv_epi8(normal, subnormal, is_subnormal);
  const __m256i is_nan = _mm256_cmpgt_epi32(full, _mm256_set1_epi32(0x7F800000));
  return _mm256_or_si256(_mm256_andnot_si256(is_nan, code), sign);
}

NGP_AVX2 void codes_by_avx2(const float* values, int64_t count, float factor, uint8_t* codes) {
  constexpr int64_t kStep = 32;
  const __m256 by = _mm256_set1_ps(factor);
  // packing goes by halves of 16 bytes: back to the values' order
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const int64_t whole = count / kStep * kStep;
  for (int64_t i = 0; i < whole; i += kStep) {
    __m256i four[4];
    for (int k = 0; k < 4; ++k) four[k] = e4m3_codes(_mm256_mul_ps(_mm256_loadu_ps(values + i + 8 * k), by));
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(four[0], four[1]), _mm256_packus_epi32(four[2], four[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  codes_by_loop(values + whole, count - whole, factor, codes + whole);
}
#endif

void codes_of(const float* values, int64_t count, float factor, uint8_t* codes) {
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2()) return codes_by_avx2(values, count, factor, codes);
#endif
  codes_by_loop(values, count, factor, codes);
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
