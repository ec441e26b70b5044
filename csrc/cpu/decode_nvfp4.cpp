// nvfp4 rows: (e2m1(code) * e4m3(block scale)) * global in fp32, in this order, rounded once to the output
// type. A block has eight magnitudes only: they are computed once, and its 16 codes look theirs up.
#include <cstring>

#include "cpu/multiversion.h"
#include "cpu/out_value.h"
#include "cpu/row_decoder.h"
#include "cpu/shuffle16.h"

namespace ngram_ple::cpu {
namespace {

constexpr int64_t kBlockBytes = kBlockElements / 2;

// The eight values of one block, positive codes first in order of their code.
template <class Out>
NGP_ALWAYS_INLINE void block_values(uint8_t scale_code, float global_scale, typename Out::Bits* values) {
  constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float scale = e4m3_to_float(scale_code);
  for (int m = 0; m < 8; ++m) values[m] = Out::from_float(kMagnitudes[m] * scale * global_scale);
}

template <class Out>
NGP_ALWAYS_INLINE void blocks_by_loop(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                                      float global_scale, uint8_t* out) {
  using Bits = typename Out::Bits;
  constexpr int kSignShift = 8 * sizeof(Bits) - 4;
  for (int64_t b = 0; b < blocks; ++b, codes += kBlockBytes, out += kBlockElements * sizeof(Bits)) {
    Bits values[8], decoded[kBlockElements];
    block_values<Out>(scales[b], global_scale, values);
    for (int j = 0; j < kBlockBytes; ++j) {  // element 2j is the low nibble of byte j
      const uint32_t low = codes[j] & 0xFu, high = codes[j] >> 4;
      decoded[2 * j] = static_cast<Bits>(values[low & 7] ^ ((low & 8u) << kSignShift));
      decoded[2 * j + 1] = static_cast<Bits>(values[high & 7] ^ ((high & 8u) << kSignShift));
    }
    std::memcpy(out, decoded, sizeof decoded);
  }
}

using DecodeBlocks = void (*)(const uint8_t* codes, const uint8_t* scales, int64_t blocks, float global,
                              uint8_t* out);

#define NGP_BLOCKS(name, Out)                                                             \
  NGP_MULTIVERSION void name(const uint8_t* codes, const uint8_t* scales, int64_t blocks, \
                             float global_scale, uint8_t* out) {                          \
    blocks_by_loop<Out>(codes, scales, blocks, global_scale, out);                        \
  }
NGP_BLOCKS(blocks_to_bf16, Bf16)
NGP_BLOCKS(blocks_to_fp16, Fp16)
NGP_BLOCKS(blocks_to_fp32, Fp32)
#undef NGP_BLOCKS

#ifdef NGP_HAS_AVX2_PATH
template <class Out>
NGP_AVX2 void blocks_by_shuffle(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                                float global_scale, uint8_t* out) {
  for (int64_t b = 0; b < blocks; ++b, codes += kBlockBytes, out += 2 * kBlockElements) {
    uint16_t values[8];
    block_values<Out>(scales[b], global_scale, values);
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(0xF));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(0xF));
    const __m256i nibbles = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(nibbles, _mm256_set1_epi16(8)), 12);
    const __m256i value = _mm256_xor_si256(shuffle16(load_table16(values), nibbles), sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), value);
  }
}

// What every scale code stands for.
struct ScaleValues {
  float of[256];
  ScaleValues() {
    for (int code = 0; code < 256; ++code) of[code] = e4m3_to_float(static_cast<uint8_t>(code));
  }
};
const ScaleValues kScaleValues;

// fp32 holds a block's eight values in one register, which a permutation looks up.
NGP_AVX2 void blocks_by_permutation(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                                    float global_scale, uint8_t* out) {
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  for (int64_t b = 0; b < blocks; ++b, codes += kBlockBytes, out += 4 * kBlockElements) {
    const __m256 scaled = _mm256_mul_ps(magnitudes, _mm256_broadcast_ss(&kScaleValues.of[scales[b]]));
    const __m256 values = _mm256_mul_ps(scaled, _mm256_set1_ps(global_scale));
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const __m128i nibbles = _mm_unpacklo_epi8(packed, _mm_srli_epi16(packed, 4));
    for (int half = 0; half < 2; ++half) {
      const __m256i code = _mm256_cvtepu8_epi32(half == 0 ? nibbles : _mm_srli_si128(nibbles, 8));
      const __m256i sign =
          _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(static_cast<int>(0x80000000u)));
      const __m256 value = _mm256_xor_ps(_mm256_permutevar8x32_ps(values, code), _mm256_castsi256_ps(sign));
      _mm256_storeu_ps(reinterpret_cast<float*>(out) + 8 * half, value);
    }
  }
}
#endif

template <DecodeBlocks decode, size_t out_bytes>
void decode_rows(const DecodeArgs& args, const RowAddress* rows, int64_t count, uint8_t* out) {
  const int64_t head_dim = args.format.head_dim, blocks = head_dim / kBlockElements;
  decode_each(rows, count, static_cast<size_t>(head_dim) * out_bytes, out,
              [&](const RowAddress& address, uint8_t* to) {
                decode(address.row, address.scale, blocks, args.global_scale, to);
              });
}

}  // namespace

RowDecoder find_nvfp4_decoder(OutType out) {
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2()) {
    if (out == OutType::fp32) return decode_rows<blocks_by_permutation, 4>;
    return out == OutType::bf16 ? decode_rows<blocks_by_shuffle<Bf16>, 2>
                                : decode_rows<blocks_by_shuffle<Fp16>, 2>;
  }
#endif
  if (out == OutType::fp32) return decode_rows<blocks_to_fp32, 4>;
  return out == OutType::bf16 ? decode_rows<blocks_to_bf16, 2> : decode_rows<blocks_to_fp16, 2>;
}

}  // namespace ngram_ple::cpu
