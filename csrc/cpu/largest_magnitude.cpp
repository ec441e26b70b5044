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
  using Half __attribute__((vector_size(kBytes / 2))) = Bits;
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  Vector most[kVectors] = {};
  const auto take = [&](Vector& larger, int64_t at) {
    Vector bits;
    std::memcpy(&bits, values + at * static_cast<int64_t>(sizeof(Bits)), kBytes);
    bits &= kMagnitude;
    bits &= bits <= last;
    larger = larger > bits ? larger : bits;
  };
  int64_t at = 0;
  for (; at + kVectors * kLanes <= count; at += kVectors * kLanes) {
    for (int64_t v = 0; v < kVectors; ++v) take(most[v], at + v * kLanes);
  }
  for (; at + kLanes <= count; at += kLanes) take(most[0], at);
  Bits result = 0;
  if (count >= kLanes) {
    if (at < count) take(most[1], count - kLanes);  // some of them again
    for (int64_t v = 1; v < kVectors; ++v) most[0] = most[0] > most[v] ? most[0] : most[v];
    Half halves[2];
    std::memcpy(halves, &most[0], kBytes);
    halves[0] = halves[0] > halves[1] ? halves[0] : halves[1];
    for (int64_t j = 0; j < kLanes / 2; ++j) result = std::max(result, halves[0][j]);
    return result;
  }
  for (; at < count; ++at) {
    Bits bits;
    std::memcpy(&bits, values + at * static_cast<int64_t>(sizeof(Bits)), sizeof bits);
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
