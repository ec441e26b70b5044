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

// Numbers that are read eight at a time, each such read aligned to its size or to 16 bytes.
template <Format kFrom>
struct WideNumbers {
  static constexpr bool kWide = true;
  const uint8_t* values;

  struct Raw {
    Bytes16 part[kFrom == Format::fp32 ? 2 : 1];
  };
  NGP_DEVICE Raw read(int64_t first, int) const {
    Raw raw;
    const uint8_t* at = values + first * static_cast<int64_t>(sizeof(Raw) / kValues);
#pragma unroll
    for (size_t i = 0; i < sizeof(Raw) / 16; ++i) raw.part[i] = load_once<Bytes16>(at + 16 * i);
    return raw;
  }
  NGP_DEVICE Eight floats(const Raw& raw) const {
    Eight eight;
    if constexpr (kFrom == Format::fp32) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) eight.value[i] = float_from_bits(raw.part[i / 4].word[i % 4]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = raw.part[0].word[i];
        Float2 pair = kFrom == Format::bf16 ? bf16x2_to_floats(word) : fp16x2_to_floats(word);
        if constexpr (kFrom == Format::fp16) {  // the sign once more: a NaN loses it on the way
          pair.low = float_from_bits(bits_of(pair.low) | (word << 16 & 0x80000000u));
          pair.high = float_from_bits(bits_of(pair.high) | (word & 0x80000000u));
        }
        eight.value[2 * i] = pair.low;
        eight.value[2 * i + 1] = pair.high;
      }
    }
    return eight;
  }
};

// Any numbers, byte by byte, `count` of eight; the others are zeros.
struct AnyNumbers {
  static constexpr bool kWide = false;
  const uint8_t* values;
  Format from;

  using Raw = Eight;
  NGP_DEVICE Raw read(int64_t first, int count) const {
    const int bytes = from == Format::fp32 ? 4 : 2;
    const uint8_t* at = values + first * bytes;
    Eight eight{};
#pragma unroll
    for (int i = 0; i < kValues; ++i) {  // not `count`: an index that is known keeps the values in registers
      if (i >= count) continue;
      uint32_t bits = 0;
      for (int k = 0; k < bytes; ++k)
        bits |= static_cast<uint32_t>(load_once<uint8_t>(at + i * bytes + k)) << (8 * k);
      eight.value[i] = from == Format::fp32   ? float_from_bits(bits)
                       : from == Format::bf16 ? bf16_to_float(static_cast<uint16_t>(bits))
                                              : fp16_to_float(static_cast<uint16_t>(bits));
    }
    return eight;
  }
  NGP_DEVICE Eight floats(const Raw& raw) const { return raw; }
};

// `run` with the type of numbers that are there.
template <class Run>
void with_numbers(Format from, const uint8_t* values, bool wide, const Run& run) {
  if (!wide) return run(AnyNumbers{values, from});
  if (from == Format::fp32) return run(WideNumbers<Format::fp32>{values});
  if (from == Format::bf16) return run(WideNumbers<Format::bf16>{values});
  run(WideNumbers<Format::fp16>{values});
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

NGP_DEVICE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// The largest magnitude as bits, whose order is that of the magnitudes, with infinities and NaN beyond.
NGP_DEVICE uint32_t largest_bits(const Eight& eight) {
  uint32_t most = 0;
#pragma unroll
  for (float value : eight.value) most = larger(most, bits_of(value) & 0x7FFFFFFFu);
  return most;
}
template <int kCount>
NGP_DEVICE uint32_t largest_bits(const Eight (&eights)[kCount]) {
  uint32_t most = 0;
#pragma unroll
  for (const Eight& eight : eights) most = larger(most, largest_bits(eight));
  return most;
}
// NaN becomes zero of its sign. The largest finite magnitude of all of them as bits.
template <int kCount>
NGP_DEVICE uint32_t drop_nan(Eight (&eights)[kCount]) {
  uint32_t most = largest_bits(eights);
  if (most < kInfinityBits) return most;  // but for broken tables
  most = 0;
#pragma unroll
  for (Eight& eight : eights) {
#pragma unroll
    for (float& value : eight.value) {
      const uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFFu;
      if (magnitude > kInfinityBits) value = float_from_bits(bits & 0x80000000u);
      if (magnitude < kInfinityBits) most = larger(most, magnitude);
    }
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
