// Random tables on the host and the device, and the bytes that their rows must decode to.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/numeric.h"
#include "core/table_view.h"
#include "cpp/gpu/batches.h"
#include "cpp/gpu/output_log.h"

namespace ngram_ple::test {

struct TableCase {
  Format format = Format::bf16;
  int64_t head_dim = 160;
  int64_t rows = 100;
  int64_t row_start = 0;
  bool scales_apart = false;  // else inside the slot, where the format has any
  bool scale_is_bf16 = false;
  int64_t spare_bytes = 0;  // between rows
  size_t offset = 0;        // of the first row from an aligned address
  Placement placement = Placement::device;
  float global_scale = 0.37f;
};

inline float random_scale(Random& random) {
  constexpr float kOdd[] = {0.0f, -0.0f, 1e-40f, -3e-39f, 1e38f, -2.5f, 65520.0f, INFINITY, NAN, 1.0f};
  if (random() % 4 == 0) return kOdd[random() % 10];
  return std::uniform_real_distribution<float>(-0.1f, 0.1f)(random);
}

struct Table {
  TableCase what;
  RowFormat format{};
  int64_t row_stride = 0, scale_stride = 0;
  std::vector<uint8_t> rows, scales;  // exactly as large as they must be

  TableView view(const uint8_t* r, const uint8_t* s, const float* global) const {
    const bool inside = format.scale_bytes > 0 && !what.scales_apart;
    TableView table{};
    table.rows = r;
    table.scales = inside ? r + format.scale_offset : (format.scale_bytes > 0 ? s : nullptr);
    table.row_stride = row_stride;
    table.scale_stride = inside ? row_stride : scale_stride;
    table.global_scale = format.has_global_scale ? global : nullptr;
    table.row_start = what.row_start;
    table.row_end = what.row_start + what.rows;
    table.format = format;
    table.scale_is_bf16 = what.scale_is_bf16;
    return table;
  }
};

inline Table make_table(const TableCase& what, Random& random) {
  Table table;
  table.what = what;
  table.format = make_row_format(what.format, what.head_dim);
  const RowFormat& format = table.format;
  const bool apart = what.scales_apart || format.scale_bytes == 0;
  table.row_stride = (apart ? format.row_bytes : format.slot_bytes) + what.spare_bytes;
  table.scale_stride = what.scale_is_bf16 ? 2 : format.scale_bytes;
  const int64_t last = apart ? format.row_bytes : format.slot_bytes;
  if (what.rows > 0) table.rows.resize(static_cast<size_t>((what.rows - 1) * table.row_stride + last));
  for (int64_t row = 0; row < what.rows; ++row) {
    for (int64_t i = 0; i < format.row_bytes; ++i) {
      table.rows[static_cast<size_t>(row * table.row_stride + i)] = static_cast<uint8_t>(random());
    }
    std::vector<uint8_t> scales(static_cast<size_t>(what.scale_is_bf16 ? 2 : format.scale_bytes));
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random());
    if (what.format == Format::fp8_rowwise) {
      const uint32_t bits = bits_of(random_scale(random)) >> (what.scale_is_bf16 ? 16 : 0);
      std::memcpy(scales.data(), &bits, scales.size());
    }
    if (apart) {
      table.scales.insert(table.scales.end(), scales.begin(), scales.end());
    } else {
      std::copy(scales.begin(), scales.end(),
                table.rows.begin() + row * table.row_stride + format.scale_offset);
    }
  }
  return table;
}

class DeviceTable {
 public:
  explicit DeviceTable(const Table& table)
      : rows_(table.rows, table.what.offset, table.what.placement),
        scales_(table.scales, 0, table.what.placement),
        global_(std::vector<float>{table.what.global_scale}),
        view_(table.view(rows_.data(), scales_.data(), global_.as<float>())) {}
  const TableView& view() const { return view_; }

 private:
  DeviceBuffer rows_, scales_, global_;
  TableView view_;
};

inline float stored_value(const TableView& table, const uint8_t* row, int64_t i) {
  uint16_t half = 0;
  float value = 0;
  switch (table.format.format) {
    case Format::bf16:
      std::memcpy(&half, row + 2 * i, 2);
      return bf16_to_float(half);
    case Format::fp16:
      std::memcpy(&half, row + 2 * i, 2);
      return fp16_to_float(half);
    case Format::fp32:
      std::memcpy(&value, row + 4 * i, 4);
      return value;
    case Format::fp8:
    case Format::fp8_rowwise:
      return e4m3_to_float(row[i]);
    case Format::nvfp4:
      break;
  }
  return e2m1_to_float(static_cast<uint8_t>(row[i / 2] >> (4 * (i % 2))));
}

inline float rounded(OutType out, float value) {
  if (out == OutType::bf16) return bf16_to_float(float_to_bf16(value));
  return out == OutType::fp16 ? fp16_to_float(float_to_fp16(value)) : value;
}

inline float row_scale(const TableView& table, const uint8_t* scales) {
  uint32_t bits = 0;
  std::memcpy(&bits, scales, table.scale_is_bf16 ? 2 : 4);
  return float_from_bits(table.scale_is_bf16 ? bits << 16 : bits);
}

// One row of the result, from a view of host memory.
inline std::vector<uint8_t> expected_row(const TableView& table, int64_t id, OutType out) {
  std::vector<uint8_t> bytes(static_cast<size_t>(table.out_row_bytes(out)));
  if (!table.owns(id)) return bytes;
  const RowFormat& format = table.format;
  const uint8_t* row = table.row(id);
  const uint8_t* scales = format.scale_bytes > 0 ? table.scale(id) : nullptr;
  const bool same = (format.format == Format::bf16 && out == OutType::bf16) ||
                    (format.format == Format::fp16 && out == OutType::fp16) ||
                    (format.format == Format::fp32 && out == OutType::fp32);
  if (same || out == OutType::bytes) {
    std::memcpy(bytes.data(), row, static_cast<size_t>(format.row_bytes));
    if (same || scales == nullptr) return bytes;
    if (format.format == Format::fp8_rowwise) {
      const float scale = row_scale(table, scales);
      std::memcpy(bytes.data() + format.scale_offset, &scale, 4);
    } else {
      std::memcpy(bytes.data() + format.scale_offset, scales, static_cast<size_t>(format.scale_bytes));
    }
    return bytes;
  }
  for (int64_t i = 0; i < format.head_dim; ++i) {
    float value = stored_value(table, row, i);
    if (format.format == Format::fp8) value *= rounded(out, *table.global_scale);
    if (format.format == Format::fp8_rowwise) value *= rounded(out, row_scale(table, scales));
    if (format.format == Format::nvfp4) value = (value * e4m3_to_float(scales[i / 16])) * *table.global_scale;
    const uint16_t half = out == OutType::bf16 ? float_to_bf16(value) : float_to_fp16(value);
    if (out == OutType::fp32) std::memcpy(bytes.data() + 4 * i, &value, 4);
    if (out != OutType::fp32) std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

// The same values, every NaN of them the same one.
inline std::vector<uint8_t> with_one_nan(std::vector<uint8_t> values, OutType out) {
  const size_t width = static_cast<size_t>(out_element_bytes(out));
  for (size_t i = 0; i + width <= values.size(); i += width) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], width);
    const bool is_nan = (out == OutType::bf16 && (bits & 0x7FFFu) > 0x7F80u) ||
                        (out == OutType::fp16 && (bits & 0x7FFFu) > 0x7C00u) ||
                        (out == OutType::fp32 && (bits & 0x7FFFFFFFu) > 0x7F800000u);
    if (is_nan) std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(i), width, uint8_t{0xFF});
  }
  return values;
}

// Bit for bit, but that any NaN stands for any other in a decoded value. Returns the first byte that differs,
// or -1.
inline int64_t first_difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& wanted,
                                OutType out) {
  const auto one = with_one_nan(got, out), other = with_one_nan(wanted, out);
  log_output(one);
  if (one.size() != other.size()) return 0;
  const auto at = std::mismatch(one.begin(), one.end(), other.begin()).first;
  return at == one.end() ? -1 : at - one.begin();
}

}  // namespace ngram_ple::test
