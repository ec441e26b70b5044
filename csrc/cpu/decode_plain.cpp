// bf16, fp16 and fp32 rows: a copy, or one conversion through fp32 (which holds both half formats exactly).
#include <cstring>

#include "cpu/multiversion.h"
#include "cpu/out_value.h"
#include "cpu/row_decoder.h"

namespace ngram_ple::cpu {
namespace {

void copy_rows(const DecodeArgs& args, const RowAddress* rows, int64_t count, uint8_t* out) {
  const size_t bytes = static_cast<size_t>(args.format.row_bytes);
  decode_each(rows, count, bytes, out,
              [&](const RowAddress& address, uint8_t* to) { std::memcpy(to, address.row, bytes); });
}

template <class In, class Out>
NGP_ALWAYS_INLINE void convert_values(const uint8_t* NGP_RESTRICT in, int64_t count,
                                      uint8_t* NGP_RESTRICT out) {
  for (int64_t j = 0; j < count; ++j) {
    typename In::Bits stored;
    std::memcpy(&stored, in + static_cast<size_t>(j) * sizeof stored, sizeof stored);
    const typename Out::Bits value = Out::from_float(In::to_float(stored));
    std::memcpy(out + static_cast<size_t>(j) * sizeof value, &value, sizeof value);
  }
}

using ConvertValues = void (*)(const uint8_t*, int64_t, uint8_t*);

#define NGP_CONVERTER(name, In, Out)                                           \
  NGP_MULTIVERSION void name(const uint8_t* in, int64_t count, uint8_t* out) { \
    convert_values<In, Out>(in, count, out);                                   \
  }
NGP_CONVERTER(bf16_to_fp16, Bf16, Fp16)
NGP_CONVERTER(bf16_to_fp32, Bf16, Fp32)
NGP_CONVERTER(fp16_to_bf16, Fp16, Bf16)
NGP_CONVERTER(fp16_to_fp32, Fp16, Fp32)
NGP_CONVERTER(fp32_to_bf16, Fp32, Bf16)
NGP_CONVERTER(fp32_to_fp16, Fp32, Fp16)
#undef NGP_CONVERTER

template <ConvertValues convert, size_t out_bytes>
void convert_rows(const DecodeArgs& args, const RowAddress* rows, int64_t count, uint8_t* out) {
  const int64_t head_dim = args.format.head_dim;
  decode_each(rows, count, static_cast<size_t>(head_dim) * out_bytes, out,
              [&](const RowAddress& address, uint8_t* to) { convert(address.row, head_dim, to); });
}

}  // namespace

RowDecoder find_plain_decoder(Format format, OutType out) {
  static constexpr RowDecoder kTable[3][3] = {
      {copy_rows, convert_rows<bf16_to_fp16, 2>, convert_rows<bf16_to_fp32, 4>},
      {convert_rows<fp16_to_bf16, 2>, copy_rows, convert_rows<fp16_to_fp32, 4>},
      {convert_rows<fp32_to_bf16, 2>, convert_rows<fp32_to_fp16, 2>, copy_rows}};
  return kTable[static_cast<int>(format)][static_cast<int>(out)];
}

}  // namespace ngram_ple::cpu
