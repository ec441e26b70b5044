// Integer arrays of either width, loaded without waiting: a sign extension right behind each load would make
// independent loads wait for one another, so the words are kept as they arrive until the value is wanted.
#pragma once

#include "core/int_array.h"
#include "gpu/runtime.h"

namespace ngram_ple::gpu {

struct PendingInt {
  uint32_t low, high;
  bool is_int64;

  NGP_DEVICE int64_t value() const {
    const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(low) >> 31);
    return static_cast<int64_t>(static_cast<uint64_t>(is_int64 ? high : sign) << 32 | low);
  }

  // The nearest number that fits in 31 bits.
  NGP_DEVICE int32_t index() const {
    const bool negative = static_cast<int32_t>(is_int64 ? high : low) < 0;
    const bool large = is_int64 && (high != 0 || static_cast<int32_t>(low) < 0);
    return negative ? 0 : (large ? 0x7FFFFFFF : static_cast<int32_t>(low));
  }
};

NGP_DEVICE PendingInt load_pending(const IntArray& array, int64_t i) {
  const int64_t width = array.is_int64 ? 8 : 4;
  const uint8_t* from = static_cast<const uint8_t*>(array.data) + i * width;
  return {load_word(from), load_word(from + width - 4), array.is_int64};
}

NGP_DEVICE PendingInt load_pending(const IntArray& array, int32_t i) {
  return load_pending(array, static_cast<int64_t>(i));
}

}  // namespace ngram_ple::gpu
