// The codec for every row that no wide access fits: odd head dims, unaligned pointers or strides, slots put
// together from scales that lie apart. One value (or byte) a chunk, read byte by byte.
#pragma once

#include "gpu/codecs.cuh"

namespace ngram_ple::gpu {

template <OutType kOut>
struct ScalarCodec {
  static constexpr bool kIsCopy = false;
  using Word = std::conditional_t<kOut == OutType::fp32, uint32_t,
                                  std::conditional_t<kOut == OutType::bytes, uint8_t, uint16_t>>;
  struct Raw {
    uint32_t bits;  // of the value, or the byte
    float scale;    // of the row or block
  };

  explicit NGP_DEVICE ScalarCodec(const TableView& table)
      : table_(table), global_scale_(global_scale_of(table)) {}

  template <class Memory>
  NGP_DEVICE Raw load(const RowAddress& at, uint32_t chunk) const {
    const auto [values, scales] = at;
    if constexpr (kOut == OutType::bytes) return {slot_byte(values, scales, chunk), 0.0f};
    const int64_t i = static_cast<int64_t>(chunk);
    switch (table_.format.format) {
      case Format::bf16:
      case Format::fp16:
        return {little_endian<2>(values + 2 * i), 0.0f};
      case Format::fp32:
        return {little_endian<4>(values + 4 * i), 0.0f};
      case Format::fp8:
        return {load_once<uint8_t>(values + i), 0.0f};
      case Format::fp8_rowwise:
        return {load_once<uint8_t>(values + i), float_from_bits(row_scale(scales))};
      case Format::nvfp4:
        break;
    }
    const uint32_t codes = load_once<uint8_t>(values + i / 2);
    const float scale = e4m3x2_to_floats(load_once<uint8_t>(scales + i / kBlockElements)).low;
    return {codes >> (4 * (i % 2)), scale};
  }

  NGP_DEVICE Word decode(const Raw& raw) const {
    if constexpr (kOut == OutType::bytes) return static_cast<uint8_t>(raw.bits);
    if constexpr (kOut == OutType::fp32) return bits_of(value_of(raw));
    if constexpr (kOut == OutType::bf16)
      return static_cast<uint16_t>(floats_to_bf16x2({value_of(raw), 0.0f}));
    if constexpr (kOut == OutType::fp16)
      return static_cast<uint16_t>(floats_to_fp16x2({value_of(raw), 0.0f}));
  }

 private:
  template <int kBytes>
  static NGP_DEVICE uint32_t little_endian(const uint8_t* from) {
    uint32_t bits = 0;
    for (int i = 0; i < kBytes; ++i) bits |= static_cast<uint32_t>(load_once<uint8_t>(from + i)) << (8 * i);
    return bits;
  }

  NGP_DEVICE uint32_t row_scale(const uint8_t* scales) const {
    return table_.scale_is_bf16 ? little_endian<2>(scales) << 16 : little_endian<4>(scales);
  }

  // Byte i of a slot: the row's bytes, its scales (bf16 ones widened to fp32), zeros between and after.
  NGP_DEVICE uint32_t slot_byte(const uint8_t* values, const uint8_t* scales, int64_t i) const {
    const RowFormat& format = table_.format;
    if (i < format.row_bytes) return load_once<uint8_t>(values + i);
    const int64_t at = i - format.scale_offset;
    if (at < 0 || at >= format.scale_bytes) return 0;
    if (format.format == Format::fp8_rowwise) return row_scale(scales) >> (8 * at) & 0xFFu;
    return load_once<uint8_t>(scales + at);
  }

  NGP_DEVICE float value_of(const Raw& raw) const {
    switch (table_.format.format) {
      case Format::bf16:
        return bf16_to_float(static_cast<uint16_t>(raw.bits));
      case Format::fp16:
        return fp16_to_float(static_cast<uint16_t>(raw.bits));
      case Format::fp32:
        return float_from_bits(raw.bits);
      case Format::fp8:
        return e4m3_to_float(static_cast<uint8_t>(raw.bits)) * round_to(kOut, global_scale_);
      case Format::fp8_rowwise:
        return e4m3_to_float(static_cast<uint8_t>(raw.bits)) * round_to(kOut, raw.scale);
      case Format::nvfp4:
        break;
    }
    return (e2m1_to_float(static_cast<uint8_t>(raw.bits)) * raw.scale) * global_scale_;
  }

  const TableView& table_;
  float global_scale_;
};

}  // namespace ngram_ple::gpu
