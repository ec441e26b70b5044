// Tables of random bytes for the row tests, in exactly sized memory, and what their rows decode to.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/table_view.h"
#include "memory.h"
#include "reference.h"

namespace testing_tables {

using ngram_ple::Format;
using ngram_ple::OutType;
using ngram_ple::RowFormat;

enum class Scales { inside, apart, apart_bf16 };

// Rows [row_start, row_start + rows) and the view of them. Odd addresses throughout.
class HeldTable {
 public:
  HeldTable(Format which, int64_t head_dim, int64_t rows, std::mt19937_64& random,
            Scales where = Scales::inside, int64_t row_start = 0)
      : format_(ngram_ple::make_row_format(which, head_dim)),
        apart_(where != Scales::inside && format_.scale_bytes != 0),
        scale_bytes_(where == Scales::apart_bf16 ? 2 : format_.scale_bytes),
        rows_(static_cast<size_t>(rows * (apart_ ? format_.row_bytes : format_.slot_bytes)), 1),
        scales_(static_cast<size_t>(apart_ ? rows * scale_bytes_ : 0), 1) {
    rows_.fill_random(random);
    scales_.fill_random(random);
    view.format = format_;
    view.rows = rows_.data();
    view.row_stride = apart_ ? format_.row_bytes : format_.slot_bytes;
    view.row_start = row_start;
    view.row_end = row_start + rows;
    view.scale_is_bf16 = apart_ && where == Scales::apart_bf16;
    if (apart_) {
      view.scales = scales_.data();
      view.scale_stride = scale_bytes_;
    } else if (format_.scale_bytes != 0) {
      view.scales = view.rows + format_.scale_offset;
      view.scale_stride = view.row_stride;
    }
    if (format_.has_global_scale) view.global_scale = &global_scale;
    if (which == Format::fp8_rowwise) make_scales_plausible(random, rows);
    clear_padding(rows);
  }
  HeldTable(const HeldTable&) = delete;

  uint8_t* scale(int64_t row) { return const_cast<uint8_t*>(view.scale(view.row_start + row)); }
  uint8_t* row(int64_t row) { return const_cast<uint8_t*>(view.row(view.row_start + row)); }

  ngram_ple::TableView view{};
  float global_scale = 0.375f;

 private:
  // Mostly near 1, sometimes any bits at all.
  void make_scales_plausible(std::mt19937_64& random, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      if (random() % 4 == 0) continue;
      const float value =
          std::ldexp(static_cast<float>(random() % 4096 + 1), static_cast<int>(random() % 24) - 18);
      const uint16_t narrow = reference::encode_half(value, reference::kBf16);
      std::memcpy(scale(r), view.scale_is_bf16 ? static_cast<const void*>(&narrow) : &value,
                  view.scale_is_bf16 ? 2 : 4);
    }
  }
  void clear_padding(int64_t rows) {
    for (int64_t r = 0; r < rows && !apart_; ++r) {
      uint8_t* slot = row(r);
      for (int64_t at = format_.row_bytes; at < format_.slot_bytes; ++at) {
        if (at < format_.scale_offset || at >= format_.scale_offset + format_.scale_bytes) slot[at] = 0;
      }
    }
  }

  RowFormat format_;
  bool apart_;
  int64_t scale_bytes_;
  testing_memory::ExactBytes rows_, scales_;
};

// One value rounded to the output type, as bits.
inline uint32_t encode(double value, OutType out) {
  if (out == OutType::bf16) return reference::encode_half(value, reference::kBf16);
  if (out == OutType::fp16) return reference::encode_half(value, reference::kFp16);
  const float narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  return bits;
}

inline double decoded(uint32_t bits, OutType out) {
  if (out == OutType::bf16) return reference::decode_half(static_cast<uint16_t>(bits), reference::kBf16);
  if (out == OutType::fp16) return reference::decode_half(static_cast<uint16_t>(bits), reference::kFp16);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Element j of a stored row as bits of `out`, by the definition of its format.
inline uint32_t expected_element(const ngram_ple::TableView& view, int64_t id, int64_t j, OutType out) {
  const uint8_t* row = view.row(id);
  const auto half_at = [&](const uint8_t* at) {
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    return bits;
  };
  const auto float_at = [&](const uint8_t* at) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  };
  switch (view.format.format) {
    case Format::bf16:
      return encode(reference::decode_half(half_at(row + 2 * j), reference::kBf16), out);
    case Format::fp16:
      return encode(reference::decode_half(half_at(row + 2 * j), reference::kFp16), out);
    case Format::fp32:
      return encode(float_at(row + 4 * j), out);
    case Format::fp8:
    case Format::fp8_rowwise: {
      double scale = view.format.has_global_scale ? *view.global_scale
                     : view.scale_is_bf16 ? reference::decode_half(half_at(view.scale(id)), reference::kBf16)
                                          : float_at(view.scale(id));
      scale = decoded(encode(scale, out), out);
      return encode(static_cast<float>(reference::e4m3(row[j]) * scale), out);
    }
    case Format::nvfp4: {
      const uint8_t code = j % 2 == 0 ? row[j / 2] & 15 : row[j / 2] >> 4;
      const double scaled = reference::e2m1(code) * reference::e4m3(view.scale(id)[j / 16]);  // exact in fp32
      return encode(static_cast<float>(scaled * static_cast<double>(*view.global_scale)), out);
    }
  }
  return 0;
}

// The row as bytes of `out`; zeros when it is not owned.
inline std::vector<uint8_t> expected_row(const ngram_ple::TableView& view, int64_t id, OutType out) {
  std::vector<uint8_t> bytes(static_cast<size_t>(view.out_row_bytes(out)), 0);
  if (!view.owns(id)) return bytes;
  const RowFormat& format = view.format;
  if (out == OutType::bytes) {
    std::memcpy(bytes.data(), view.row(id), static_cast<size_t>(format.row_bytes));
    if (view.scale_is_bf16) {
      std::memcpy(bytes.data() + format.scale_offset + 2, view.scale(id),
                  2);  // bf16 is the upper half of fp32
    } else if (format.scale_bytes != 0) {
      std::memcpy(bytes.data() + format.scale_offset, view.scale(id),
                  static_cast<size_t>(format.scale_bytes));
    }
    return bytes;
  }
  const size_t size = static_cast<size_t>(ngram_ple::out_element_bytes(out));
  for (int64_t j = 0; j < format.head_dim; ++j) {
    const uint32_t bits = expected_element(view, id, j, out);
    std::memcpy(bytes.data() + static_cast<size_t>(j) * size, &bits, size);
  }
  return bytes;
}

// Equal to the bit, except that every NaN is as good as another.
inline bool same_row(const uint8_t* got, const std::vector<uint8_t>& expected, OutType out) {
  if (std::memcmp(got, expected.data(), expected.size()) == 0) return true;
  if (out == OutType::bytes) return false;
  const size_t size = static_cast<size_t>(ngram_ple::out_element_bytes(out));
  for (size_t at = 0; at < expected.size(); at += size) {
    uint32_t a = 0, b = 0;
    std::memcpy(&a, got + at, size);
    std::memcpy(&b, expected.data() + at, size);
    if (a != b && !(std::isnan(decoded(a, out)) && std::isnan(decoded(b, out)))) return false;
  }
  return true;
}

inline std::string name_of(const ngram_ple::TableView& view, OutType out) {
  return std::string(ngram_ple::kFormatNames[static_cast<int>(view.format.format)]) + " to " +
         ngram_ple::kOutTypeNames[static_cast<int>(out)] + ", head_dim " +
         std::to_string(view.format.head_dim);
}

inline constexpr OutType kOutTypes[] = {OutType::bf16, OutType::fp16, OutType::fp32, OutType::bytes};
inline constexpr Format kFormats[] = {Format::bf16, Format::fp16,        Format::fp32,
                                      Format::fp8,  Format::fp8_rowwise, Format::nvfp4};

inline std::vector<Scales> scale_places(Format format) {
  if (format == Format::fp8_rowwise) return {Scales::inside, Scales::apart, Scales::apart_bf16};
  if (format == Format::nvfp4) return {Scales::inside, Scales::apart};
  return {Scales::inside};
}

}  // namespace testing_tables
