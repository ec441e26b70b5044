// From stored rows to output, a chunk at a time. A codec says what one chunk needs from memory (Raw, load)
// and what it becomes (emit); the two are apart so that the kernel can have many loads under way. The
// arithmetic is that of core/numeric.h, two values at a time.
#pragma once

#include <type_traits>

#include "gpu/row_address.cuh"

namespace ngram_ple::gpu {

// --- Output: one chunk is 16 bytes, 8 values of two bytes or 4 of four -------------------------------
template <OutType kOut>
struct Chunk {
  static constexpr int kValues = kOut == OutType::fp32 ? 4 : 8;
  static constexpr int kPairs = kValues / 2;
  Bytes16 bytes{};

  NGP_DEVICE void set_pair(int i, Float2 value) {
    if constexpr (kOut == OutType::fp32) {
      bytes.word[2 * i] = bits_of(value.low);
      bytes.word[2 * i + 1] = bits_of(value.high);
    } else if constexpr (kOut == OutType::bf16) {
      bytes.word[i] = floats_to_bf16x2(value);
    } else {
      bytes.word[i] = floats_to_fp16x2(value);
    }
  }
};

NGP_DEVICE float round_to(OutType out, float value) {
  if (out == OutType::bf16) return bf16_to_float(float_to_bf16(value));
  return out == OutType::fp16 ? fp16_to_float(float_to_fp16(value)) : value;
}

template <int64_t kBytes>
NGP_DEVICE void store_zeros(uint8_t* to) {
  if constexpr (kBytes == 16) store_once(to, Bytes16{});
  if constexpr (kBytes == 8) store_once(to, Bytes8{});
  if constexpr (kBytes == 4) store_once(to, uint32_t{0});
  if constexpr (kBytes == 2) store_once(to, uint16_t{0});
  if constexpr (kBytes == 1) store_once(to, uint8_t{0});
}

// --- A row as it is: to its own type, and whole slots -----------------------------------------------
template <class Word>
struct CopyCodec {
  using Raw = Word;
  static constexpr bool kHasScales = false;
  static constexpr int kBatch = 5;
  static constexpr int64_t kOutBytes = sizeof(Word);

  static NGP_DEVICE Raw load(const TableView&, const RowAddress& at, uint32_t chunk) {
    return load_once<Word>(at.values + static_cast<int64_t>(chunk) * kOutBytes);
  }
  static NGP_DEVICE void emit(float, const Raw& raw, uint8_t* out) { store_once(out, raw); }
};

// --- One floating type to another -------------------------------------------------------------------
template <Format kFrom, OutType kOut>
struct ConvertCodec {
  static constexpr bool kHasScales = false;
  using Out = Chunk<kOut>;
  static constexpr int kBatch = 5;
  static constexpr int64_t kOutBytes = 16;
  static constexpr int kWords = Out::kValues * (kFrom == Format::fp32 ? 4 : 2) / 4;
  using Raw = Words<kWords>;

  static NGP_DEVICE Raw load(const TableView&, const RowAddress& at, uint32_t chunk) {
    const uint8_t* from = at.values + static_cast<int64_t>(chunk) * (4 * kWords);
    if constexpr (kWords <= 4) {
      return load_once<Raw>(from);
    } else {
      const auto first = load_once<Bytes16>(from), second = load_once<Bytes16>(from + 16);
      return {{first.word[0], first.word[1], first.word[2], first.word[3], second.word[0], second.word[1],
               second.word[2], second.word[3]}};
    }
  }
  static NGP_DEVICE void emit(float, const Raw& raw, uint8_t* to) {
    Out out;
#pragma unroll
    for (int i = 0; i < Out::kPairs; ++i) {
      if constexpr (kFrom == Format::fp32) {
        out.set_pair(i, {float_from_bits(raw.word[2 * i]), float_from_bits(raw.word[2 * i + 1])});
      } else {
        out.set_pair(i,
                     kFrom == Format::bf16 ? bf16x2_to_floats(raw.word[i]) : fp16x2_to_floats(raw.word[i]));
      }
    }
    store_once(to, out.bytes);
  }
};

// --- fp8: code to(out) times scale to(out), one rounding --------------------------------------------
template <bool kRowwise, OutType kOut>
struct Fp8Codec {
  static constexpr bool kHasScales = kRowwise;
  using Out = Chunk<kOut>;
  static constexpr int kBatch = 5;
  static constexpr int64_t kOutBytes = 16;
  static constexpr int kWords = Out::kValues / 4;
  struct Raw {
    Words<kWords> codes;
    uint32_t scale;  // a row's own, as stored
  };

  static NGP_DEVICE Raw load([[maybe_unused]] const TableView& table, const RowAddress& at, uint32_t chunk) {
    Raw raw{};
    const uint8_t* from = at.values + static_cast<int64_t>(chunk) * (4 * kWords);
    if constexpr (kWords == 1) {
      raw.codes.word[0] = load_once<uint32_t>(from);
    } else {
      raw.codes = load_once<Words<kWords>>(from);
    }
    if constexpr (kRowwise) {
      const uint8_t* scale = at.scales;
      raw.scale = table.scale_is_bf16 ? static_cast<uint32_t>(load_once<uint16_t>(scale)) << 16
                                      : load_once<uint32_t>(scale);
    }
    return raw;
  }
  static NGP_DEVICE void emit(float global_scale, const Raw& raw, uint8_t* to) {
    const float scale = round_to(kOut, kRowwise ? float_from_bits(raw.scale) : global_scale);
    Out out;
#pragma unroll
    for (int i = 0; i < Out::kPairs; ++i) {
      const Float2 code = e4m3x2_to_floats(static_cast<uint16_t>(raw.codes.word[i / 2] >> (16 * (i % 2))));
      out.set_pair(i, {code.low * scale, code.high * scale});
    }
    store_once(to, out.bytes);
  }
};

// --- nvfp4: (code * block scale) * global scale in fp32, one rounding -------------------------------
template <OutType kOut>
struct Nvfp4Codec {
  static constexpr bool kHasScales = true;
  using Out = Chunk<kOut>;
  static constexpr int kBatch = 5;
  static constexpr int64_t kOutBytes = 16;
  using Codes = std::conditional_t<Out::kValues == 8, uint32_t, uint16_t>;
  struct Raw {
    Codes codes;
    uint8_t scale;
  };

  static NGP_DEVICE Raw load(const TableView&, const RowAddress& at, uint32_t chunk) {
    const int64_t i = static_cast<int64_t>(chunk);
    return {load_once<Codes>(at.values + i * static_cast<int64_t>(sizeof(Codes))),
            load_once<uint8_t>(at.scales + i / (kBlockElements / Out::kValues))};
  }
  static NGP_DEVICE void emit(float global_scale, const Raw& raw, uint8_t* to) {
    // A code's bits, put at the exponent's low end of an fp16, are its value times 2^-14, subnormal included.
    const float scale = e4m3x2_to_floats(raw.scale).low * 0x1p14f;
    const auto value = [&](float code) { return (code * scale) * global_scale; };
    Float2 pair[Out::kPairs];  // element i of the lower half of the codes beside element i of the upper half
#pragma unroll
    for (int i = 0; i < Out::kPairs; ++i) {
      pair[i] = fp16x2_to_floats(spread(raw.codes, i));
    }
    Out out;
#pragma unroll
    for (int i = 0; i < Out::kPairs / 2; ++i) {
      out.set_pair(i, {value(pair[2 * i].low), value(pair[2 * i + 1].low)});
      out.set_pair(i + Out::kPairs / 2, {value(pair[2 * i].high), value(pair[2 * i + 1].high)});
    }
    store_once(to, out.bytes);
  }

 private:
  // Nibble i of each half of `codes` as an fp16 each.
  static NGP_DEVICE uint32_t spread(uint32_t codes, int i) {
    const uint32_t top = codes << (12 - 4 * i);  // the two nibbles at bits 15..12 and 31..28
    return (top & 0x80008000u) | ((top >> 3) & 0x0E000E00u);
  }
  static NGP_DEVICE uint32_t spread(uint16_t codes, int i) {
    const uint32_t halves = (codes & 0xFFu) | static_cast<uint32_t>(codes >> 8) << 16;
    return spread(halves, i);
  }
};

}  // namespace ngram_ple::gpu
