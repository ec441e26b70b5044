// From numbers to stored rows: which scales are chosen, and what a value becomes under its scale. The one
// home of this arithmetic, for the CPU and the GPU. Every step is one rounded fp32 operation, so eager torch
// that does the same steps gives the same bytes.
//
//   fp8, fp8-rowwise   scale = amax / 448                     code = e4m3(x * (1 / scale))
//   nvfp4              global = amax / 2688                   (448 * 6)
//                      scale = e4m3(block amax * (1 / (6 * global))), at least 2^-9
//                      code = e2m1(x * (1 / (scale * global)))
//
// amax is the largest finite magnitude of what shares the scale; where it is 0 the scale is 1. No result is
// NaN or infinite: an infinity becomes the largest magnitude of its sign, NaN zero of its sign.
#pragma once

#include <cstdint>

#include "core/numeric.h"
#include "core/row_format.h"

namespace ngram_ple {

inline constexpr float kMostE4m3 = 448.0f, kMostE2m1 = 6.0f;

// Global and row scales are at least this: its reciprocal is finite, and a product with the least block scale
// is still a normal number. Values so small that this matters (below 3e-33) lose bits or become zero.
inline constexpr float kLeastScale = 0x1p-117f;
// The least block scale above zero. A block that asks for less is encoded better under it than under zero.
inline constexpr float kLeastBlockScale = 0x1p-9f;

inline constexpr uint32_t kInfinityBits = 0x7F800000u;

// Bits of |value|, zero where that is not finite. They order as the magnitudes do.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint32_t finite_magnitude_bits(float value) {
  const uint32_t bits = bits_of(value) & 0x7FFFFFFFu;
  return select(bits < kInfinityBits, bits, 0u);
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE float at_least(float value, float least) {
  return value > least ? value : least;  // `least` for NaN
}

// The scale under which `amax` is the largest code, for fp8 rows.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE float row_scale_of(float amax, bool round_to_bf16) {
  if (!(amax > 0.0f)) return 1.0f;
  const float scale = at_least(amax / kMostE4m3, kLeastScale);
  return round_to_bf16 ? bf16_to_float(float_to_bf16(scale)) : scale;
}

// What block maxima are multiplied by, once a table.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE float per_block_scale(float global_scale) {
  return 1.0f / (kMostE2m1 * at_least(global_scale, kLeastScale));
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint8_t block_scale_code(float block_amax, float per_scale) {
  return float_to_e4m3(at_least(block_amax * per_scale, kLeastBlockScale));
}

// What a block's values are multiplied by.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE float block_factor(uint8_t scale_code, float global_scale) {
  return 1.0f / (e4m3_to_float(scale_code) * at_least(global_scale, kLeastScale));
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE float row_factor(float scale) {
  return 1.0f / at_least(scale, kLeastScale);
}

// The largest finite magnitude of a plain format, as fp32.
NGP_HOST_DEVICE constexpr float most_of(Format format) {
  return format == Format::bf16 ? 0x1.FEp127f : (format == Format::fp16 ? 65504.0f : 0x1.FFFFFEp127f);
}

// `value` inside [-most, most], NaN as zero of its sign.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE float within(float value, float most) {
  const uint32_t bits = bits_of(value), full = bits & 0x7FFFFFFFu;
  const uint32_t limit = bits_of(most), magnitude = full < limit ? full : limit;
  return float_from_bits(select(full > kInfinityBits, 0u, magnitude) | (bits & 0x80000000u));
}

}  // namespace ngram_ple
