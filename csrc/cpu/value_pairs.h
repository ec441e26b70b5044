// Sixteen values as AVX2 encoders take them: even ones in one register, odd ones in another. Two bf16 values
// of 32 bits part by a shift and a mask, and two results of 16 bits go back together as easily.
#pragma once

#include <cstdint>

#include "core/row_format.h"
#include "cpu/x86.h"

#ifdef NGP_HAS_AVX2_PATH
namespace ngram_ple::cpu {

struct Pairs {
  __m256 even, odd;
};

// bf16 or fp32 values.
template <Format from>
NGP_AVX2 inline Pairs load_pairs(const uint8_t* values) {
  static_assert(from == Format::bf16 || from == Format::fp32);
  if constexpr (from == Format::bf16) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, high))};
  } else {
    const __m256 low = _mm256_loadu_ps(reinterpret_cast<const float*>(values));
    const __m256 high = _mm256_loadu_ps(reinterpret_cast<const float*>(values) + 8);
    // shuffles go by halves of four values
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xDD));
    return {_mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xD8)),
            _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xD8))};
  }
}

NGP_AVX2 inline Pairs times(const Pairs& values, __m256 factor) {
  return {_mm256_mul_ps(values.even, factor), _mm256_mul_ps(values.odd, factor)};
}

// The low halves of 32-bit lanes, in the values' order.
NGP_AVX2 inline __m256i low_halves(__m256i even, __m256i odd) {
  return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
}
NGP_AVX2 inline __m256i high_halves(__m256i even, __m256i odd) {
  return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA);
}

// float_to_e4m3 of sixteen values, a 16-bit lane each, in their order.
NGP_AVX2 inline __m256i e4m3_codes(const Pairs& values) {
  const __m256i even = _mm256_castps_si256(values.even), odd = _mm256_castps_si256(values.odd);
  // A value's high half rounds as the value does, if its last bit tells whether anything followed.
  const __m256i half = high_halves(even, odd);
  const __m256i none = _mm256_cmpeq_epi16(low_halves(even, odd), _mm256_setzero_si256());
  const __m256i full = _mm256_and_si256(half, _mm256_set1_epi16(0x7FFF));
  const __m256i sticky = _mm256_or_si256(full, _mm256_add_epi16(none, _mm256_set1_epi16(1)));
  const __m256i magnitude = _mm256_min_epi16(sticky, _mm256_set1_epi16(0x43E0));  // 448
  const __m256i last = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), _mm256_set1_epi16(1));
  const __m256i rounded =
      _mm256_add_epi16(_mm256_add_epi16(magnitude, last), _mm256_set1_epi16(7 - (120 << 7)));
  const __m256i normal = _mm256_srli_epi16(rounded, 4);
  // Adding 1.5 2^14 leaves multiples of 2^-9, signed, in the low half.
  const __m256 shift = _mm256_set1_ps(0x1.8p14f);
  const __m256i steps = low_halves(_mm256_castps_si256(_mm256_add_ps(values.even, shift)),
                                   _mm256_castps_si256(_mm256_add_ps(values.odd, shift)));
  const __m256i is_subnormal = _mm256_cmpgt_epi16(_mm256_set1_epi16(0x3C80), magnitude);
  const __m256i code = _mm256_blendv_epi8(normal, _mm256_abs_epi16(steps), is_subnormal);
  const __m256i is_nan = _mm256_cmpgt_epi16(sticky, _mm256_set1_epi16(0x7F80));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(half, 8), _mm256_set1_epi16(0x80));
  return _mm256_or_si256(_mm256_andnot_si256(is_nan, code), sign);
}

}  // namespace ngram_ple::cpu
#endif
