// Eight values at a time between memory and registers, and the codes they become.
#pragma once

#include "gpu/runtime.h"
// after the vendor's memcpy
#include "core/encoding.h"

namespace ngram_ple::gpu {

inline constexpr int kValues = 8;

struct Eight {
  float value[kValues];
};

NGP_DEVICE int64_t bytes_of(Format plain) { return plain == Format::fp32 ? 4 : 2; }

// `count` values (the rest are zeros). Wide: all eight, aligned to their size or to 16.
template <bool kWide>
NGP_DEVICE Eight load_eight(Format from, const uint8_t* at, int count) {
  Eight eight{};
  if constexpr (kWide) {
    const Bytes16 first = load_once<Bytes16>(at);
    if (from == Format::fp32) {
      const Bytes16 second = load_once<Bytes16>(at + 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        eight.value[i] = float_from_bits(first.word[i]);
        eight.value[4 + i] = float_from_bits(second.word[i]);
      }
      return eight;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = first.word[i];
      if (from == Format::bf16) {
        const Float2 pair = bf16x2_to_floats(word);
        eight.value[2 * i] = pair.low;
        eight.value[2 * i + 1] = pair.high;
      } else {  // the sign once more: a NaN loses it on the way
        const Float2 pair = fp16x2_to_floats(word);
        eight.value[2 * i] = float_from_bits(bits_of(pair.low) | (word << 16 & 0x80000000u));
        eight.value[2 * i + 1] = float_from_bits(bits_of(pair.high) | (word & 0x80000000u));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {  // not `count`: an index that is known keeps the values in registers
      if (i >= count) continue;
      uint32_t bits = 0;
      const int bytes = static_cast<int>(bytes_of(from));
      for (int k = 0; k < bytes; ++k)
        bits |= static_cast<uint32_t>(load_once<uint8_t>(at + i * bytes + k)) << (8 * k);
      eight.value[i] = from == Format::fp32   ? float_from_bits(bits)
                       : from == Format::bf16 ? bf16_to_float(static_cast<uint16_t>(bits))
                                              : fp16_to_float(static_cast<uint16_t>(bits));
    }
  }
  return eight;
}

// The low `count` bytes of `word`, wide only when that is all of them.
template <bool kWide, class Word>
NGP_DEVICE void store_bytes(uint8_t* to, const Word& word, int count) {
  if constexpr (kWide) {
    store_once(to, word);
  } else {
    uint8_t bytes[sizeof(Word)];
    memcpy(bytes, &word, sizeof word);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Word)); ++i) {
      if (i < count) store_once(to + i, bytes[i]);
    }
  }
}

// The largest magnitude as bits, whose order is that of the magnitudes, with infinities and NaN beyond.
NGP_DEVICE uint32_t largest_bits(const Eight& eight) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const uint32_t bits = bits_of(eight.value[i]) & 0x7FFFFFFFu;
    most = bits > most ? bits : most;
  }
  return most;
}
// NaN becomes zero of its sign. The largest finite magnitude as bits.
NGP_DEVICE uint32_t drop_nan(Eight& eight) {
  uint32_t most = largest_bits(eight);
  if (most < kInfinityBits) return most;  // but for broken tables
  most = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const uint32_t bits = bits_of(eight.value[i]), magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > kInfinityBits) eight.value[i] = float_from_bits(bits & 0x80000000u);
    if (magnitude < kInfinityBits && magnitude > most) most = magnitude;
  }
  return most;
}

// e4m3(x * factor) of each, none of them NaN, the first in the lowest byte.
NGP_DEVICE Bytes8 to_e4m3(const Eight& eight, float factor) {
  Bytes8 codes{};
#pragma unroll
  for (int i = 0; i < kValues; i += 2) {
    const Float2 scaled{eight.value[i] * factor, eight.value[i + 1] * factor};
    codes.word[i / 4] |= static_cast<uint32_t>(floats_to_e4m3x2(scaled)) << (16 * (i / 2 % 2));
  }
  return codes;
}

// e2m1(x * factor) of each, the first in the lowest nibble. Codes 0..7 are the knots of a polyline through
// the magnitudes: 2 y up to 2, y + 2 up to 4, y / 2 + 4 up to 6. Adding its pieces to 2^23 one after another
// rounds once, to the nearest even code, since all pieces but the one y lies in are whole numbers. This is
// the multipliers' work, of which a multiprocessor has more than of integers'. Signs are those of the values:
// a product loses that of a NaN.
NGP_DEVICE uint32_t to_e2m1(const Eight& eight, float factor) {
  uint32_t codes = 0u - (0x4B000000u + (0x4B000000u << 4)), signs = 0;  // what the 2^23 of the sums leave
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float y = float_from_bits(bits_of(eight.value[i] * factor) & 0x7FFFFFFFu);
    float sum = fused(saturated(y * 0.5f), 4.0f, 0x1p23f);
    sum = fused(saturated(fused(y, 0.5f, -1.0f)), 2.0f, sum);
    sum = sum + saturated(fused(y, 0.5f, -2.0f));
    codes += bits_of(sum) << (4 * i);
    signs |= (bits_of(eight.value[i]) >> (28 - 4 * i)) & (8u << (4 * i));
  }
  return codes | signs;
}

}  // namespace ngram_ple::gpu
