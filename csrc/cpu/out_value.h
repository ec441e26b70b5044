// The three output element types as compile-time policies: how a float becomes one, and which float it then
// is.
#pragma once

#include <cstdint>

#include "core/numeric.h"

namespace ngram_ple::cpu {

struct Bf16 {
  using Bits = uint16_t;
  static NGP_ALWAYS_INLINE Bits from_float(float value) { return float_to_bf16(value); }
  static NGP_ALWAYS_INLINE float to_float(Bits bits) { return bf16_to_float(bits); }
};

struct Fp16 {
  using Bits = uint16_t;
  static NGP_ALWAYS_INLINE Bits from_float(float value) { return float_to_fp16(value); }
  static NGP_ALWAYS_INLINE float to_float(Bits bits) { return fp16_to_float(bits); }
};

struct Fp32 {
  using Bits = uint32_t;
  static NGP_ALWAYS_INLINE Bits from_float(float value) { return bits_of(value); }
  static NGP_ALWAYS_INLINE float to_float(Bits bits) { return float_from_bits(bits); }
};

}  // namespace ngram_ple::cpu
