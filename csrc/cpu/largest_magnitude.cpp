// The largest magnitude as the largest bits without their sign: infinities and then NaN come after all
// numbers.
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/encoding.h"
#include "cpu/encode.h"
#include "cpu/multiversion.h"

namespace ngram_ple::cpu {
namespace {

// Signed, since SSE2 has the maximum of no other 16-bit numbers; without their sign bits all are positive.
// Bits above `last` are left out.
template <class Bits>
NGP_ALWAYS_INLINE Bits largest_bits(const uint8_t* values, int64_t count, Bits last) {
  constexpr int64_t kBytes = 32, kLanes = kBytes / static_cast<int64_t>(sizeof(Bits)), kVectors = 4;
  using Vector __attribute__((vector_size(kBytes))) = Bits;
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  Vector most[kVectors] = {};
  for (; count >= kVectors * kLanes; count -= kVectors * kLanes) {
    for (int64_t v = 0; v < kVectors; ++v, values += kBytes) {
      Vector bits;
      std::memcpy(&bits, values, kBytes);
      bits &= kMagnitude;
      bits &= bits <= last;
      most[v] = most[v] > bits ? most[v] : bits;
    }
  }
  Bits result = 0;
  for (const Vector& vector : most) {
    for (int64_t j = 0; j < kLanes; ++j) result = std::max(result, vector[j]);
  }
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, values + static_cast<size_t>(i) * sizeof bits, sizeof bits);
    bits = static_cast<Bits>(bits & kMagnitude);
    result = bits <= last ? std::max(result, bits) : result;
  }
  return result;
}

NGP_MULTIVERSION uint16_t largest_of_16_bits(const uint8_t* values, int64_t count, int16_t last) {
  return static_cast<uint16_t>(largest_bits<int16_t>(values, count, last));
}
NGP_MULTIVERSION uint32_t largest_of_32_bits(const uint8_t* values, int64_t count, int32_t last) {
  return static_cast<uint32_t>(largest_bits<int32_t>(values, count, last));
}

}  // namespace

float largest_magnitude(Format from, const uint8_t* values, int64_t count, bool finite_only) {
  switch (from) {
    case Format::bf16:
      return bf16_to_float(largest_of_16_bits(values, count, finite_only ? 0x7F7F : 0x7FFF));
    case Format::fp16:
      return fp16_to_float(largest_of_16_bits(values, count, finite_only ? 0x7BFF : 0x7FFF));
    default:
      return float_from_bits(largest_of_32_bits(values, count, finite_only ? 0x7F7FFFFF : 0x7FFFFFFF));
  }
}

}  // namespace ngram_ple::cpu
