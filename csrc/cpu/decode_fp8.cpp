// fp8 (E4M3fn) rows with one global scale or a scale a row: row.to(out) * scale.to(out), bit for bit what
// eager torch gives. Both operands are rounded to the output type first (E4M3 is exact in all three), their
// product once more.
#include <cstring>

#include "cpu/multiversion.h"
#include "cpu/out_value.h"
#include "cpu/row_decoder.h"
#include "cpu/shuffle16.h"

namespace ngram_ple::cpu {
namespace {

// The scale of one row, rounded to the output type.
template <class Out>
float rounded_scale(const DecodeArgs& args, const RowAddress& address) {
  const bool rowwise = args.format.format == Format::fp8_rowwise;
  return Out::to_float(Out::from_float(rowwise ? load_row_scale(args, address) : args.global_scale));
}

template <class Out>
NGP_ALWAYS_INLINE void decode_codes(const uint8_t* NGP_RESTRICT codes, int64_t count, float scale,
                                    uint8_t* NGP_RESTRICT out) {
  for (int64_t j = 0; j < count; ++j) {
    const typename Out::Bits value = Out::from_float(e4m3_to_float(codes[j]) * scale);
    std::memcpy(out + static_cast<size_t>(j) * sizeof value, &value, sizeof value);
  }
}

#define NGP_CODES(name, Out)                                                                   \
  NGP_MULTIVERSION void name(const uint8_t* codes, int64_t count, float scale, uint8_t* out) { \
    decode_codes<Out>(codes, count, scale, out);                                               \
  }
NGP_CODES(codes_to_bf16, Bf16)
NGP_CODES(codes_to_fp16, Fp16)
NGP_CODES(codes_to_fp32, Fp32)
#undef NGP_CODES

using DecodeCodes = void (*)(const uint8_t*, int64_t, float, uint8_t*);

template <class Out, DecodeCodes decode>
void decode_rows(const DecodeArgs& args, const RowAddress* rows, int64_t count, uint8_t* out) {
  const int64_t head_dim = args.format.head_dim;
  decode_each(rows, count, static_cast<size_t>(head_dim) * sizeof(typename Out::Bits), out,
              [&](const RowAddress& address, uint8_t* to) {
                decode(address.row, head_dim, rounded_scale<Out>(args, address), to);
              });
}

#ifdef NGP_HAS_AVX2_PATH
// To 16-bit outputs: a code's product with the scale depends on its mantissa alone, up to the exponent, as
// long as nothing leaves the normal range; subnormal codes have a table of their own. So a scale needs 16
// products, not head_dim, and a code two byte shuffles.
struct ScaleTables {
  uint16_t normal[8];     // (1 + m/8) |scale| 2^-7, exponent not yet added
  uint16_t subnormal[8];  // m 2^-9 |scale|
  uint16_t sign;
  bool usable;
};

template <class Out, int mantissa_bits>
ScaleTables make_tables(float scale) {
  constexpr int kExponentMask = (1 << (15 - mantissa_bits)) - 1;
  const uint16_t bits = Out::from_float(scale);
  const int exponent = (bits >> mantissa_bits) & kExponentMask;
  ScaleTables tables{};
  // Codes reach from 2^-6 to 448 < 2^9, and a rounded product may carry once more.
  tables.usable = exponent >= 8 && exponent <= kExponentMask - 11;
  if (!tables.usable) return tables;
  tables.sign = bits & 0x8000u;
  const float magnitude = scale < 0 ? -scale : scale;
  for (int m = 0; m < 8; ++m) {
    const int product = Out::from_float(static_cast<float>(8 + m) * 0.125f * magnitude);
    tables.normal[m] = static_cast<uint16_t>(product - (7 << mantissa_bits));
    tables.subnormal[m] = Out::from_float(static_cast<float>(m) * 0x1p-9f * magnitude);
  }
  return tables;
}

template <int mantissa_bits>
NGP_AVX2 void codes_by_shuffle(const uint8_t* codes, int64_t blocks, const ScaleTables& tables,
                               uint8_t* out) {
  const __m256i normal = load_table16(tables.normal), subnormal = load_table16(tables.subnormal);
  const __m256i row_sign = _mm256_set1_epi16(static_cast<int16_t>(tables.sign));
  const __m256i quiet_nan = _mm256_set1_epi16(mantissa_bits == 7 ? 0x7FC0 : 0x7E00);
  for (int64_t b = 0; b < blocks; ++b) {
    const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes) + b));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7F));
    const __m256i exponent =
        _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x78)), mantissa_bits - 3);
    const __m256i is_subnormal = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
    const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7F));
    __m256i value = _mm256_add_epi16(shuffle16(normal, code), exponent);
    value = _mm256_blendv_epi8(value, shuffle16(subnormal, code), is_subnormal);
    value = _mm256_blendv_epi8(value, quiet_nan, is_nan);
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    value = _mm256_xor_si256(value, _mm256_xor_si256(sign, row_sign));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + b, value);
  }
}

template <class Out, int mantissa_bits, DecodeCodes decode>
void decode_rows_avx2(const DecodeArgs& args, const RowAddress* rows, int64_t count, uint8_t* out) {
  const int64_t head_dim = args.format.head_dim, blocks = head_dim / 16, shuffled = blocks * 16;
  float table_scale = 0;
  ScaleTables tables{};
  decode_each(rows, count, static_cast<size_t>(2 * head_dim), out,
              [&](const RowAddress& address, uint8_t* to) {
                const float scale = rounded_scale<Out>(args, address);
                if (scale != table_scale) {
                  tables = make_tables<Out, mantissa_bits>(scale);
                  table_scale = scale;
                }
                const int64_t done = tables.usable ? shuffled : 0;
                if (done != 0) codes_by_shuffle<mantissa_bits>(address.row, blocks, tables, to);
                if (done != head_dim) decode(address.row + done, head_dim - done, scale, to + 2 * done);
              });
}
#endif

}  // namespace

RowDecoder find_fp8_decoder(OutType out) {
  if (out == OutType::fp32) return decode_rows<Fp32, codes_to_fp32>;
#ifdef NGP_HAS_AVX2_PATH
  if (has_avx2()) {
    return out == OutType::bf16 ? decode_rows_avx2<Bf16, 7, codes_to_bf16>
                                : decode_rows_avx2<Fp16, 10, codes_to_fp16>;
  }
#endif
  return out == OutType::bf16 ? decode_rows<Bf16, codes_to_bf16> : decode_rows<Fp16, codes_to_fp16>;
}

}  // namespace ngram_ple::cpu
