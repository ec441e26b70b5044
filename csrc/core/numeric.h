// Bits to numbers and back, branch-free so that a compiler can vectorise the loops that use them.
// bf16, fp16, E4M3 and E2M1 values travel as raw bits: no vendor's header is needed to hold them.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/portability.h"

namespace ngram_ple {

NGP_HOST_DEVICE NGP_ALWAYS_INLINE float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// condition ? a : b, as a mask: a branch here would keep a loop from being vectorised.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint32_t select(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE float bf16_to_float(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; every NaN becomes the quiet NaN 0x7FC0.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(select((bits & 0x7FFFFFFFu) > 0x7F800000u, 0x7FC0u, rounded));
}

NGP_HOST_DEVICE NGP_ALWAYS_INLINE float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = (magnitude << 13) | 0x7F800000u;
  return float_from_bits(
      sign | select(magnitude < 0x400u, subnormal, select(magnitude >= 0x7C00u, special, normal)));
}

// Round to nearest even, to subnormals and infinity as IEEE 754 has it.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint16_t float_to_fp16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Adding 1/2 puts the subnormals' last place (2^-24) at the sum's own, which so rounds them.
  const uint32_t subnormal = bits_of(float_from_bits(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t special = select(magnitude > 0x7F800000u, 0x7E00u, 0x7C00u);
  const uint32_t half =
      select(magnitude < 0x38800000u, subnormal, select(magnitude >= 0x47800000u, special, normal));
  return static_cast<uint16_t>(sign | half);
}

// E4M3fn: bias 7, subnormals m 2^-9, no infinity, 0x7F and 0xFF are NaN. Exact.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  const uint32_t special = 0x7FC00000u;
  return float_from_bits(sign |
                         select(magnitude < 8u, subnormal, select(magnitude == 0x7Fu, special, normal)));
}

// E2M1, the low four bits of `code`: magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Exact.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE float e2m1_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8u) << 28;
  const uint32_t magnitude = code & 0x7u;
  const uint32_t subnormal = magnitude * 0x3F000000u;  // 0 or 0.5
  const uint32_t normal = (magnitude << 22) + (126u << 23);
  return float_from_bits(sign | select(magnitude < 2u, subnormal, normal));
}

// To E4M3fn, round to nearest even, subnormals included. Magnitudes over 448, infinities among them, become
// 448; NaN becomes zero of its sign: a code always stands for a number.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint8_t float_to_e4m3(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t full = bits & 0x7FFFFFFFu;
  const uint32_t magnitude = full < 0x43E00000u ? full : 0x43E00000u;  // 448
  // Adding 2^14 puts the subnormals' last place (2^-9) at the sum's own, which so rounds them.
  const uint32_t subnormal = bits_of(float_from_bits(magnitude) + 0x1p14f) - 0x46800000u;
  const uint32_t normal = (magnitude - (120u << 23) + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
  const uint32_t code = select(magnitude < 0x3C800000u, subnormal, normal);
  return static_cast<uint8_t>(select(full > 0x7F800000u, 0u, code) | ((bits >> 24) & 0x80u));
}

// To E2M1, round to nearest even; magnitudes over 6 become 6, NaN zero of its sign.
NGP_HOST_DEVICE NGP_ALWAYS_INLINE uint8_t float_to_e2m1(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t full = bits & 0x7FFFFFFFu;
  const uint32_t magnitude = full < 0x40C00000u ? full : 0x40C00000u;  // 6
  const uint32_t subnormal = bits_of(float_from_bits(magnitude) + 0x1p22f) - 0x4A800000u;
  const uint32_t normal = (magnitude - (126u << 23) + 0x1FFFFFu + ((magnitude >> 22) & 1u)) >> 22;
  const uint32_t code = select(magnitude < 0x3F800000u, subnormal, normal);
  return static_cast<uint8_t>(select(full > 0x7F800000u, 0u, code) | ((bits >> 28) & 8u));
}

}  // namespace ngram_ple
