// To nvfp4 rows: blocks of 16 values under an E4M3 scale each. Rows are whole blocks, so all blocks of a
// chunk are alike, whichever row they belong to.
#include <algorithm>

#include "core/encoding.h"
#include "cpu/encode.h"
#include "cpu/multiversion.h"
#include "cpu/value_pairs.h"

namespace ngram_ple::cpu {
namespace {

constexpr int64_t kBlocks = kEncodeChunk / kBlockElements;
constexpr int64_t kBlockBytes = kBlockElements / 2;

NGP_MULTIVERSION void amax_by_loop(const float* NGP_RESTRICT values, int64_t blocks,
                                   float* NGP_RESTRICT amax) {
  for (int64_t b = 0; b < blocks; ++b) {
    uint32_t most = 0;
    for (int j = 0; j < kBlockElements; ++j) {
      most = std::max(most, finite_magnitude_bits(values[b * kBlockElements + j]));
    }
    amax[b] = float_from_bits(most);
  }
}

// From the blocks' maxima to their scale codes and what their values are multiplied by.
NGP_MULTIVERSION void block_scales(int64_t blocks, float global_scale, uint8_t* NGP_RESTRICT codes,
                                   float* NGP_RESTRICT amax_then_factors) {
  const float per_scale = per_block_scale(global_scale);
  for (int64_t b = 0; b < blocks; ++b) codes[b] = block_scale_code(amax_then_factors[b], per_scale);
  for (int64_t b = 0; b < blocks; ++b) amax_then_factors[b] = block_factor(codes[b], global_scale);
}

NGP_MULTIVERSION void pack_by_loop(const float* NGP_RESTRICT values, int64_t blocks,
                                   const float* NGP_RESTRICT factors, uint8_t* NGP_RESTRICT rows) {
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t codes[kBlockElements];
    for (int j = 0; j < kBlockElements; ++j) {
      codes[j] = float_to_e2m1(values[b * kBlockElements + j] * factors[b]);
    }
    for (int j = 0; j < kBlockBytes; ++j) {  // the even element is the low nibble
      rows[b * kBlockBytes + j] = static_cast<uint8_t>(codes[2 * j] | codes[2 * j + 1] << 4);
    }
  }
}

#ifdef NGP_HAS_AVX2_PATH
constexpr int64_t kGroup = 8;  // blocks whose scales are found together

NGP_AVX2 inline __m256i finite_magnitudes(__m256 values) {
  const __m256i full = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7FFFFFFF));
  return _mm256_and_si256(full, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7F800000), full));
}

// Lanes of the larger: of each half's first and second pair, or of its first and second half.
NGP_AVX2 inline __m256i max_of_two(__m256i a, __m256i b) {
  return _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
NGP_AVX2 inline __m256i max_of_four(__m256i a, __m256i b) {
  return _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

// The maximum of each of eight registers.
NGP_AVX2 inline __m256 largest_of_eight(const __m256i* most) {
  const __m256i low = max_of_four(max_of_two(most[0], most[1]), max_of_two(most[2], most[3]));
  const __m256i high = max_of_four(max_of_two(most[4], most[5]), max_of_two(most[6], most[7]));
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                              _mm256_permute2x128_si256(low, high, 0x31)));
}

// block_scale_code and block_factor of eight blocks.
NGP_AVX2 inline __m256 group_scales(__m256 amax, float global_scale, uint8_t* codes) {
  const __m256 asked = _mm256_mul_ps(amax, _mm256_set1_ps(per_block_scale(global_scale)));
  const __m256 scale = _mm256_max_ps(asked, _mm256_set1_ps(kLeastBlockScale));
  const __m256i code = e4m3_codes({scale, _mm256_setzero_ps()});
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(code, code), 0xD8);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes),
                   _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_castsi256_si128(words)));
  const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(code, 20), _mm256_set1_epi32(120 << 23));
  const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(0x1p-9f));
  const __m256i is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), code);
  const __m256 stored =
      _mm256_blendv_ps(_mm256_castsi256_ps(normal), subnormal, _mm256_castsi256_ps(is_subnormal));
  const __m256 whole = _mm256_set1_ps(at_least(global_scale, kLeastScale));
  return _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_mul_ps(stored, whole));
}

// The magnitude of float_to_e2m1 in the low three bits of each lane; what lies above the low half is noise.
// Codes over magnitudes are three lines, of which the lowest counts: steps of 1/2, steps of 1 from code 2 on,
// steps of 2 from code 4 on. Each addition rounds to its line's steps, ties to even.
NGP_AVX2 inline __m256i e2m1_magnitudes(__m256 value) {
  const __m256 full = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
  const __m256 number = _mm256_and_ps(full, _mm256_cmp_ps(full, full, _CMP_ORD_Q));  // NaN: 0
  const __m256 size = _mm256_min_ps(number, _mm256_set1_ps(kMostE2m1));
  const __m256 first = _mm256_add_ps(size, _mm256_set1_ps(0x1p22f));
  const __m256 second = _mm256_add_ps(size, _mm256_set1_ps(0x1p23f + 2.0f));
  const __m256 third = _mm256_add_ps(size, _mm256_set1_ps(0x1p24f + 8.0f));
  const __m256i lower = _mm256_min_epi16(_mm256_castps_si256(first), _mm256_castps_si256(second));
  return _mm256_min_epi16(lower, _mm256_castps_si256(third));
}

// The codes of a block: a byte, even + 16 odd, in each 32-bit lane.
NGP_AVX2 inline __m256i block_codes(const Pairs& values, float factor) {
  const Pairs scaled = times(values, _mm256_set1_ps(factor));
  const __m256i even = e2m1_magnitudes(scaled.even), odd = e2m1_magnitudes(scaled.odd);
  const __m256i magnitudes =
      _mm256_and_si256(_mm256_or_si256(even, _mm256_slli_epi32(odd, 4)), _mm256_set1_epi32(0x77));
  const __m256i even_sign = _mm256_srli_epi32(_mm256_castps_si256(values.even), 31);
  const __m256i odd_sign = _mm256_srli_epi32(_mm256_castps_si256(values.odd), 31);
  const __m256i signs = _mm256_or_si256(_mm256_slli_epi32(even_sign, 3), _mm256_slli_epi32(odd_sign, 7));
  return _mm256_or_si256(magnitudes, signs);
}

// Steps of the loops below, by groups: what one group waits for, another fills.
template <Format from>
NGP_AVX2 void amax_of_groups(const uint8_t* values, int64_t groups, float* amax) {
  for (int64_t g = 0; g < groups; ++g, amax += kGroup) {
    __m256i most[kGroup];
    for (__m256i& largest : most) {
      const Pairs block = load_pairs<from>(values);
      largest = _mm256_max_epi32(finite_magnitudes(block.even), finite_magnitudes(block.odd));
      values += kBlockElements * (from == Format::fp32 ? 4 : 2);
    }
    _mm256_store_ps(amax, largest_of_eight(most));
  }
}

NGP_AVX2 void scales_of_groups(int64_t groups, float global_scale, uint8_t* codes, float* amax_then_factors) {
  for (int64_t g = 0; g < groups; ++g, codes += kGroup, amax_then_factors += kGroup) {
    _mm256_store_ps(amax_then_factors, group_scales(_mm256_load_ps(amax_then_factors), global_scale, codes));
  }
}

template <Format from>
NGP_AVX2 void pack_groups(const uint8_t* values, int64_t groups, const float* factors, uint8_t* rows) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t b = 0; b < groups * kGroup; b += 4, rows += 4 * kBlockBytes) {
    __m256i four[4];
    for (int64_t k = 0; k < 4; ++k) {
      four[k] = block_codes(load_pairs<from>(values), factors[b + k]);
      values += kBlockElements * (from == Format::fp32 ? 4 : 2);
    }
    // packing goes by halves of 16 bytes: back to the values' order
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(four[0], four[1]), _mm256_packus_epi32(four[2], four[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows), _mm256_permutevar8x32_epi32(bytes, order));
  }
}

// A group at least. The last group overlaps the one before where the blocks are no whole groups.
template <Format from>
void encode_groups(const uint8_t* values, int64_t blocks, float global_scale, uint8_t* rows,
                   uint8_t* scales) {
  alignas(32) float factors[kBlocks];
  for (int64_t next = 0, groups; next < blocks; next += groups * kGroup) {
    groups = std::max<int64_t>(1, std::min(kBlocks, blocks - next) / kGroup);
    const int64_t at = std::min(next, blocks - groups * kGroup);
    const uint8_t* part = values + at * kBlockElements * (from == Format::fp32 ? 4 : 2);
    amax_of_groups<from>(part, groups, factors);
    scales_of_groups(groups, global_scale, scales + at, factors);
    pack_groups<from>(part, groups, factors, rows + at * kBlockBytes);
  }
}
#endif

void encode_floats(const float* values, int64_t blocks, float global_scale, uint8_t* rows, uint8_t* scales) {
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2() && blocks >= kGroup) {
    return encode_groups<Format::fp32>(reinterpret_cast<const uint8_t*>(values), blocks, global_scale, rows,
                                       scales);
  }
#endif
  float factors[kBlocks];
  amax_by_loop(values, blocks, factors);
  block_scales(blocks, global_scale, scales, factors);
  pack_by_loop(values, blocks, factors, rows);
}

}  // namespace

void encode_nvfp4(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                  uint8_t* scales) {
  const int64_t blocks = count * args.to.scale_bytes, from_bytes = args.from == Format::fp32 ? 4 : 2;
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2() && blocks >= kGroup && args.from == Format::bf16) {
    return encode_groups<Format::bf16>(values, blocks, args.global_scale, rows, scales);
  }
#endif
  alignas(64) float wide[kEncodeChunk];
  for (int64_t at = 0; at < blocks; at += kBlocks) {
    const int64_t n = std::min(kBlocks, blocks - at);
    widen(args.from, values + at * kBlockElements * from_bytes, n * kBlockElements, wide);
    encode_floats(wide, n, args.global_scale, rows + at * kBlockBytes, scales + at);
  }
}

}  // namespace ngram_ple::cpu
