// Rows of numbers of every kind, and what they must be encoded to: each value on its own, its code found by
// comparing with every code's magnitude.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/encoding.h"
#include "core/row_format.h"
#include "reference.h"

namespace testing_encoded {

using namespace ngram_ple;

struct EncodeCase {
  Format from = Format::bf16, to = Format::nvfp4;
  int64_t head_dim = 160, rows = 9;
  bool scale_is_bf16 = false;
  bool odd = false;  // infinities, NaN and huge values among them
};

struct Encoded {
  std::vector<uint8_t> rows, scales;
};

inline size_t plain_bytes(Format format) { return format == Format::fp32 ? 4 : 2; }

inline float plain_value(Format format, const uint8_t* at) {
  if (format == Format::fp32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  const float value = static_cast<float>(
      reference::decode_half(bits, format == Format::bf16 ? reference::kBf16 : reference::kFp16));
  return std::copysign(value, (bits & 0x8000u) != 0 ? -1.0f : 1.0f);  // NaN has a sign too
}

inline void push_plain(std::vector<uint8_t>& bytes, Format format, float value) {
  uint32_t bits;
  if (format == Format::fp32) {
    std::memcpy(&bits, &value, 4);
  } else if (std::isnan(value)) {
    bits = (format == Format::bf16 ? 0x7FC0u : 0x7E00u) | (std::signbit(value) ? 0x8000u : 0u);
  } else {
    bits = reference::encode_half(value, format == Format::bf16 ? reference::kBf16 : reference::kFp16);
  }
  for (size_t i = 0; i < plain_bytes(format); ++i) bytes.push_back(static_cast<uint8_t>(bits >> (8 * i)));
}

template <class Random>
std::vector<uint8_t> make_numbers(const EncodeCase& what, Random& random) {
  constexpr float kOdd[] = {INFINITY, -INFINITY, NAN, -NAN, 3e38f, -65504.0f, 1e-40f, -1e-30f};
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<uint8_t> bytes;
  for (int64_t row = 0; row < what.rows; ++row) {
    const float size = row % 5 == 3 ? 0.0f : std::ldexp(1.0f, static_cast<int>(random() % 12) - 6);
    for (int64_t i = 0; i < what.head_dim; ++i) {
      const bool odd = what.odd && random() % 23 == 0;
      // one value in eight on a code's tie, or nearly
      const float tie =
          std::ldexp(static_cast<float>(random() % 15 + 1), -8) * (random() % 2 == 0 ? 1.0f : -1.0f);
      push_plain(bytes, what.from,
                 odd ? kOdd[random() % 8] : (random() % 8 == 0 ? tie : normal(random)) * size);
    }
  }
  return bytes;
}

// The nearest of codes 0 .. last, the even one of two; beyond the last the last; NaN as zero. With its sign.
inline uint8_t nearest_code(float value, uint8_t last, uint8_t sign, double (*decode)(uint8_t)) {
  const uint8_t signed_zero = std::signbit(value) ? sign : 0;
  if (std::isnan(value)) return signed_zero;
  const double magnitude = std::fabs(static_cast<double>(value));
  uint8_t best = last;
  if (magnitude < decode(last)) {
    uint8_t low = 0;
    while (decode(static_cast<uint8_t>(low + 1)) <= magnitude) ++low;
    const double below = magnitude - decode(low), above = decode(static_cast<uint8_t>(low + 1)) - magnitude;
    best = below < above || (below == above && low % 2 == 0) ? low : static_cast<uint8_t>(low + 1);
  }
  return best | signed_zero;
}
inline uint8_t nearest_e4m3(float value) { return nearest_code(value, 0x7E, 0x80, reference::e4m3); }
inline uint8_t nearest_e2m1(float value) { return nearest_code(value, 7, 8, reference::e2m1); }

inline float finite_amax(const float* values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i])) most = std::max(most, std::fabs(values[i]));
  }
  return most;
}

inline Encoded expected_rows(const EncodeCase& what, const std::vector<uint8_t>& numbers,
                             float global_scale) {
  Encoded result;
  std::vector<float> row(static_cast<size_t>(what.head_dim));
  for (int64_t r = 0; r < what.rows; ++r) {
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = plain_value(what.from,
                           &numbers[(static_cast<size_t>(r) * row.size() + i) * plain_bytes(what.from)]);
    }
    if (what.to == Format::fp8) {
      for (float value : row) result.rows.push_back(nearest_e4m3(value * (1.0f / global_scale)));
    } else if (what.to == Format::fp8_rowwise) {
      const float amax = finite_amax(row.data(), what.head_dim);
      float scale = amax == 0 ? 1.0f : std::max(amax / 448.0f, 0x1p-117f);
      if (what.scale_is_bf16)
        scale = static_cast<float>(
            reference::decode_half(reference::encode_half(scale, reference::kBf16), reference::kBf16));
      for (float value : row) result.rows.push_back(nearest_e4m3(value * (1.0f / scale)));
      push_plain(result.scales, what.scale_is_bf16 ? Format::bf16 : Format::fp32, scale);
    } else if (what.to == Format::nvfp4) {
      for (size_t block = 0; block < row.size(); block += 16) {
        const float wanted = finite_amax(&row[block], 16) * (1.0f / (6.0f * global_scale));
        const uint8_t scale = nearest_e4m3(std::max(wanted, 0x1p-9f));
        result.scales.push_back(scale);
        const float factor = 1.0f / (static_cast<float>(reference::e4m3(scale)) * global_scale);
        for (size_t i = block; i < block + 16; i += 2) {
          result.rows.push_back(
              static_cast<uint8_t>(nearest_e2m1(row[i] * factor) | nearest_e2m1(row[i + 1] * factor) << 4));
        }
      }
    } else {
      const float most = what.to == Format::bf16   ? 0x1.FEp127f
                         : what.to == Format::fp16 ? 65504.0f
                                                   : std::numeric_limits<float>::max();
      for (float value : row) {
        const float known = std::isnan(value) ? std::copysign(0.0f, value) : value;
        push_plain(result.rows, what.to, std::min(std::max(known, -most), most));
      }
    }
  }
  return result;
}

inline bool encode_case_exists(Format to, int64_t head_dim) {
  return to != Format::nvfp4 || head_dim % kBlockElements == 0;
}

// What scales the table: its largest finite magnitude under the largest codes, unless it is given.
inline float table_scale(const EncodeCase& what, const std::vector<uint8_t>& numbers) {
  float most = 0;
  for (size_t at = 0; at < numbers.size(); at += plain_bytes(what.from)) {
    const float value = plain_value(what.from, &numbers[at]);
    if (std::isfinite(value)) most = std::max(most, std::fabs(value));
  }
  return most == 0 ? 1.0f : std::max(most / (what.to == Format::fp8 ? 448.0f : 2688.0f), 0x1p-117f);
}

}  // namespace testing_encoded
