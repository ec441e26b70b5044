// Pairs of numbers by core's arithmetic, for devices without an instruction for them: a part of runtime.h.
#pragma once

#include "core/numeric.h"
#include "gpu/words.h"

namespace ngram_ple::gpu::soft {

NGP_DEVICE Float2 e4m3x2_to_floats(uint16_t pair) {
  return {e4m3_to_float(static_cast<uint8_t>(pair)), e4m3_to_float(static_cast<uint8_t>(pair >> 8))};
}
NGP_DEVICE uint32_t floats_to_bf16x2(Float2 value) {
  return float_to_bf16(value.low) | static_cast<uint32_t>(float_to_bf16(value.high)) << 16;
}
NGP_DEVICE uint32_t floats_to_fp16x2(Float2 value) {
  return float_to_fp16(value.low) | static_cast<uint32_t>(float_to_fp16(value.high)) << 16;
}
NGP_DEVICE uint16_t floats_to_e4m3x2(Float2 value) {
  return static_cast<uint16_t>(float_to_e4m3(value.low) | float_to_e4m3(value.high) << 8);
}

}  // namespace ngram_ple::gpu::soft
