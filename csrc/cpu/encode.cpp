#include "cpu/encode.h"

#include "cpu/row_decoder.h"

namespace ngram_ple::cpu {

void widen(Format from, const uint8_t* values, int64_t count, float* out) {
  const RowAddress address{values, nullptr};
  const DecodeArgs args{make_row_format(from, count), 1.0f, false};
  find_plain_decoder(from, OutType::fp32)(args, &address, 1, reinterpret_cast<uint8_t*>(out));
}

void encode(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows, uint8_t* scales) {
  switch (args.to.format) {
    case Format::fp8:
      return encode_fp8(args, values, count, rows);
    case Format::fp8_rowwise:
      return encode_fp8_rowwise(args, values, count, rows, scales);
    case Format::nvfp4:
      return encode_nvfp4(args, values, count, rows, scales);
    default:
      return encode_plain(args, values, count, rows);
  }
}

}  // namespace ngram_ple::cpu
