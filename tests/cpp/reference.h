// Slow, independent definitions that the tests hold the product's code against: arithmetic in double by
// ldexp, hashing by a list of the whole history. Nothing here shares code with csrc.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace reference {

// An IEEE-like binary format of 16 bits: sign, exponent, mantissa.
struct HalfKind {
  int mantissa_bits;
  int exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int top() const { return (1 << exponent_bits) - 1; }
};
inline constexpr HalfKind kBf16{7, 8}, kFp16{10, 5};

inline double decode_half(uint16_t bits, HalfKind kind) {
  const int mantissa = bits & ((1 << kind.mantissa_bits) - 1);
  const int exponent = (bits >> kind.mantissa_bits) & kind.top();
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == kind.top()) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const int implied = exponent == 0 ? 0 : 1 << kind.mantissa_bits;
  const int power = (exponent == 0 ? 1 : exponent) - kind.bias() - kind.mantissa_bits;
  return sign * std::ldexp(implied + mantissa, power);
}

// Round to nearest even. The double must hold the value exactly.
inline uint16_t encode_half(double value, HalfKind kind) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = kind.top() << kind.mantissa_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | (1 << (kind.mantissa_bits - 1)));
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(magnitude), 1 - kind.bias());
  const double units = std::nearbyint(std::ldexp(magnitude, kind.mantissa_bits - exponent));
  // A mantissa that rounds up to the next power of two carries into the exponent by itself.
  const int64_t bits =
      static_cast<int64_t>(units) + (static_cast<int64_t>(exponent + kind.bias() - 1) << kind.mantissa_bits);
  return static_cast<uint16_t>(sign | std::min<int64_t>(bits, infinity));
}

inline double e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

inline double e2m1(uint8_t code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -1) : std::ldexp(2 + mantissa, exponent - 2);
  return code & 8 ? -magnitude : magnitude;
}

// A ragged batch in plain vectors.
struct Batch {
  std::vector<int64_t> input_ids;
  std::vector<int64_t> query_start_loc;
  std::vector<std::vector<int64_t>> contexts;
  std::vector<int64_t> multipliers, sizes, offsets;
  int64_t eos = 0;
  int heads_per_ngram = 1;
};

// ids [T][H], by walking back through context + chunk of the token's request.
inline std::vector<std::vector<int64_t>> ngram_ids(const Batch& batch) {
  const int64_t num_requests = static_cast<int64_t>(batch.query_start_loc.size()) - 1;
  const size_t order_limit = batch.multipliers.size();
  std::vector<std::vector<int64_t>> all;
  for (size_t t = 0; t < batch.input_ids.size(); ++t) {
    int64_t request = num_requests - 1;
    while (request > 0 && batch.query_start_loc[static_cast<size_t>(request)] > static_cast<int64_t>(t))
      --request;
    const size_t r = static_cast<size_t>(request);
    std::vector<int64_t> history = batch.contexts[r];
    for (size_t i = static_cast<size_t>(batch.query_start_loc[r]); i <= t; ++i)
      history.push_back(batch.input_ids[i]);
    std::vector<int64_t> ids;
    uint64_t mixed = 0;
    bool ended = false;
    for (size_t s = 0; s < order_limit; ++s) {
      int64_t token = history[history.size() - 1 - s];
      if (ended) token = batch.eos;
      if (s > 0 && token == batch.eos) ended = true;
      mixed ^= static_cast<uint64_t>(token) * static_cast<uint64_t>(batch.multipliers[s]);
      if (s == 0) continue;
      for (int k = 0; k < batch.heads_per_ngram; ++k) {
        const size_t h = (s - 1) * static_cast<size_t>(batch.heads_per_ngram) + static_cast<size_t>(k);
        int64_t remainder = static_cast<int64_t>(mixed) % batch.sizes[h];
        if (remainder < 0) remainder += batch.sizes[h];
        ids.push_back(remainder + batch.offsets[h]);
      }
    }
    all.push_back(ids);
  }
  return all;
}

}  // namespace reference
