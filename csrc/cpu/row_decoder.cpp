#include "cpu/row_decoder.h"

#include <cstring>

#include "core/numeric.h"

namespace ngram_ple::cpu {

float load_row_scale(const DecodeArgs& args, const RowAddress& address) {
  if (args.scale_is_bf16) {
    uint16_t bits;
    std::memcpy(&bits, address.scale, sizeof bits);
    return bf16_to_float(bits);
  }
  float scale;
  std::memcpy(&scale, address.scale, sizeof scale);
  return scale;
}

namespace {

// Raw mode: the slot as tables hold it, whether the scales came inside it or apart.
void copy_slots(const DecodeArgs& args, const RowAddress* rows, int64_t count, uint8_t* out) {
  const RowFormat& format = args.format;
  const size_t slot_bytes = static_cast<size_t>(format.slot_bytes),
               row_bytes = static_cast<size_t>(format.row_bytes);
  decode_each(rows, count, slot_bytes, out, [&](const RowAddress& address, uint8_t* to) {
    std::memcpy(to, address.row, row_bytes);
    std::memset(to + row_bytes, 0, slot_bytes - row_bytes);
    if (args.scale_is_bf16) {
      const float widened = load_row_scale(args, address);
      std::memcpy(to + format.scale_offset, &widened, sizeof widened);
    } else if (format.scale_bytes != 0) {
      std::memcpy(to + format.scale_offset, address.scale, static_cast<size_t>(format.scale_bytes));
    }
  });
}

}  // namespace

RowDecoder find_row_decoder(Format format, OutType out) {
  if (out == OutType::bytes) return copy_slots;
  switch (format) {
    case Format::fp8:
    case Format::fp8_rowwise:
      return find_fp8_decoder(out);
    case Format::nvfp4:
      return find_nvfp4_decoder(out);
    default:
      return find_plain_decoder(format, out);
  }
}

}  // namespace ngram_ple::cpu
