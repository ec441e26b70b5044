// To nvfp4 rows: blocks of 16 values under an E4M3 scale each. Rows are whole blocks, so all blocks of a
// chunk are alike, whichever row they belong to.
#include <algorithm>

#include "core/encoding.h"
#include "cpu/encode.h"
#include "cpu/multiversion.h"
#include "cpu/x86.h"

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
NGP_AVX2 inline __m256i finite_magnitudes(const float* values) {
  const __m256i full =
      _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(values)), _mm256_set1_epi32(0x7FFFFFFF));
  return _mm256_and_si256(full, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7F800000), full));
}

NGP_AVX2 void amax_by_avx2(const float* values, int64_t blocks, float* amax) {
  for (int64_t b = 0; b < blocks; ++b, values += kBlockElements) {
    const __m256i eight = _mm256_max_epi32(finite_magnitudes(values), finite_magnitudes(values + 8));
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 1));
    _mm_store_ss(amax + b, _mm_castsi128_ps(one));
  }
}

// float_to_e2m1 of eight values, one a lane.
NGP_AVX2 inline __m256i e2m1_codes(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i full = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i magnitude = _mm256_min_epi32(full, _mm256_set1_epi32(0x40C00000));
  const __m256 shifted = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p22f));
  const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4A800000));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 22), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(magnitude, odd), _mm256_set1_epi32(0x1FFFFF - (126 << 23)));
  const __m256i normal = _mm256_srli_epi32(rounded, 22);
  const __m256i is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3F800000), magnitude);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 28), _mm256_set1_epi32(8));
  const __m256i code = _mm256_blendv_epi8(normal, subnormal, is_subnormal);
  const __m256i is_nan = _mm256_cmpgt_epi32(full, _mm256_set1_epi32(0x7F800000));
  return _mm256_or_si256(_mm256_andnot_si256(is_nan, code), sign);
}

NGP_AVX2 void pack_by_avx2(const float* values, int64_t blocks, const float* factors, uint8_t* rows) {
  for (int64_t b = 0; b < blocks; ++b, values += kBlockElements, rows += kBlockBytes) {
    const __m256 factor = _mm256_set1_ps(factors[b]);
    const __m256i low = e2m1_codes(_mm256_mul_ps(_mm256_loadu_ps(values), factor));
    const __m256i high = e2m1_codes(_mm256_mul_ps(_mm256_loadu_ps(values + 8), factor));
    // 16-bit lanes in the order 0-3, 8-11, 4-7, 12-15; then a byte a pair: even + 16 odd.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x1001));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(rows), _mm_packus_epi16(pairs, pairs));
  }
}
#endif

}  // namespace

void encode_nvfp4(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                  uint8_t* scales) {
  auto find_amax = amax_by_loop;
  auto pack = pack_by_loop;
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2()) {
    find_amax = amax_by_avx2;
    pack = pack_by_avx2;
  }
#endif
  const int64_t blocks = count * args.to.scale_bytes, from_bytes = args.from == Format::fp32 ? 4 : 2;
  alignas(64) float wide[kEncodeChunk];
  float factors[kBlocks];
  for (int64_t at = 0; at < blocks; at += kBlocks) {
    const int64_t n = std::min(kBlocks, blocks - at);
    widen(args.from, values + at * kBlockElements * from_bytes, n * kBlockElements, wide);
    find_amax(wide, n, factors);
    block_scales(n, args.global_scale, scales + at, factors);
    pack(wide, n, factors, rows + at * kBlockBytes);
  }
}

}  // namespace ngram_ple::cpu
