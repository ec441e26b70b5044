// How a row is stored: names and byte geometry of the six formats. The one home of both.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/portability.h"

namespace ngram_ple {

enum class Format : uint8_t { bf16, fp16, fp32, fp8, fp8_rowwise, nvfp4 };
enum class OutType : uint8_t { bf16, fp16, fp32, bytes };

inline constexpr const char* kFormatNames[] = {"bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4"};
inline constexpr const char* kOutTypeNames[] = {"bf16", "fp16", "fp32", "bytes"};

// nvfp4: elements that share one E4M3 block scale.
inline constexpr int64_t kBlockElements = 16;

inline std::optional<Format> parse_format(std::string_view name) {
  for (uint8_t i = 0; i < 6; ++i) {
    if (name == kFormatNames[i]) return static_cast<Format>(i);
  }
  return std::nullopt;
}

inline std::optional<OutType> parse_out_type(std::string_view name) {
  for (uint8_t i = 0; i < 4; ++i) {
    if (name == kOutTypeNames[i]) return static_cast<OutType>(i);
  }
  return std::nullopt;
}

NGP_HOST_DEVICE constexpr int64_t out_element_bytes(OutType out) {
  return out == OutType::fp32 ? 4 : (out == OutType::bytes ? 1 : 2);
}

NGP_HOST_DEVICE constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A table holds one slot a row: the row's bytes and, where the format has them, its scales at scale_offset,
// padded with zeros so that slots stay 16-byte aligned and one access brings both. Formats without scales
// have slot == row.
struct RowFormat {
  Format format;
  int64_t head_dim;      // elements
  int64_t row_bytes;     // codes or values
  int64_t scale_bytes;   // scales that belong to the row, 0 when there are none
  int64_t scale_offset;  // where they start inside the slot
  int64_t slot_bytes;
  bool has_global_scale;
};

// Largest head_dim: keeps every byte count of a row far inside 32 bits.
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 24;

inline RowFormat make_row_format(Format format, int64_t head_dim) {
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    throw std::invalid_argument("head_dim must be within 1..2^24, got " + std::to_string(head_dim));
  }
  switch (format) {
    case Format::bf16:
    case Format::fp16:
      return {format, head_dim, 2 * head_dim, 0, 0, 2 * head_dim, false};
    case Format::fp32:
      return {format, head_dim, 4 * head_dim, 0, 0, 4 * head_dim, false};
    case Format::fp8:
      return {format, head_dim, head_dim, 0, 0, head_dim, true};
    case Format::fp8_rowwise: {
      const int64_t offset = round_up(head_dim, 4);
      return {format, head_dim, head_dim, 4, offset, round_up(offset + 4, 16), false};
    }
    case Format::nvfp4:
      break;
  }
  if (head_dim % kBlockElements != 0) {
    throw std::invalid_argument("nvfp4 needs a head_dim divisible by 16, got " + std::to_string(head_dim));
  }
  const int64_t codes = head_dim / 2, scales = head_dim / kBlockElements;
  return {format, head_dim, codes, scales, codes, round_up(codes + scales, 16), true};
}

}  // namespace ngram_ple
