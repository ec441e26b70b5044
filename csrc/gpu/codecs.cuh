// From stored rows to output, a chunk at a time. A codec says what one chunk needs from memory (Raw, load)
// and what it becomes (decode to a Word); the two are apart so that a kernel can have many loads under way.
// The arithmetic is that of core/numeric.h, two values at a time. These codecs want rows aligned to what they
// load, and write 16 bytes a chunk: 8 values of two bytes or 4 of four. scalar_codec.cuh takes the rest.
#pragma once

#include <type_traits>

#include "gpu/row_address.cuh"

namespace ngram_ple::gpu {

// --- Where rows are read ----------------------------------------------------------------------------
struct InGlobal {
  template <class T>
  static NGP_DEVICE T get(const uint8_t* from) {
    return load_once<T>(from);
  }
};
struct InShared {
  template <class T>
  static NGP_DEVICE T get(const uint8_t* from) {
    return load_shared<T>(from);
  }
};

// --- Shared by the codecs ---------------------------------------------------------------------------
NGP_DEVICE float global_scale_of(const TableView& table) {
  return table.global_scale == nullptr ? 1.0f : *table.global_scale;
}

NGP_DEVICE float round_to(OutType out, float value) {
  if (out == OutType::bf16) return bf16_to_float(float_to_bf16(value));
  return out == OutType::fp16 ? fp16_to_float(float_to_fp16(value)) : value;
}

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

// --- A row as it is: to its own type, and whole slots -----------------------------------------------
template <class ThisWord>
struct CopyCodec {
  using Raw = ThisWord;
  using Word = ThisWord;
  static constexpr bool kIsCopy = true;

  explicit NGP_DEVICE CopyCodec(const TableView&) {}

  template <class Memory>
  NGP_DEVICE Raw load(const RowAddress& at, uint32_t chunk) const {
    return Memory::template get<Word>(at.values +
                                      static_cast<int64_t>(chunk) * static_cast<int64_t>(sizeof(Word)));
  }
  NGP_DEVICE Word decode(const Raw& raw) const { return raw; }
};

// --- One floating type to another -------------------------------------------------------------------
template <OutType kOut>
struct ConvertCodec {
  using Out = Chunk<kOut>;
  using Word = Bytes16;
  static constexpr bool kIsCopy = false;
  static constexpr int kHalfWords = Out::kValues / 2;  // of a chunk of two-byte values
  struct Raw {
    uint32_t word[Out::kValues];
  };

  explicit NGP_DEVICE ConvertCodec(const TableView& table) : from_(table.format.format) {}

  template <class Memory>
  NGP_DEVICE Raw load(const RowAddress& at, uint32_t chunk) const {
    Raw raw{};
    if (from_ == Format::fp32) {
      load_words<Memory, Out::kValues>(at.values, chunk, raw);
    } else {
      load_words<Memory, kHalfWords>(at.values, chunk, raw);
    }
    return raw;
  }
  NGP_DEVICE Word decode(const Raw& raw) const {
    Out out;
#pragma unroll
    for (int i = 0; i < Out::kPairs; ++i) {
      if (from_ == Format::fp32) {
        out.set_pair(i, {float_from_bits(raw.word[2 * i]), float_from_bits(raw.word[2 * i + 1])});
      } else {
        out.set_pair(i,
                     from_ == Format::bf16 ? bf16x2_to_floats(raw.word[i]) : fp16x2_to_floats(raw.word[i]));
      }
    }
    return out.bytes;
  }

 private:
  template <class Memory, int kWords>
  static NGP_DEVICE void load_words(const uint8_t* row, uint32_t chunk, Raw& raw) {
    constexpr int kStep = kWords < 4 ? kWords : 4;
    const uint8_t* from = row + static_cast<int64_t>(chunk) * (4 * kWords);
#pragma unroll
    for (int i = 0; i < kWords; i += kStep) {
      const auto words = Memory::template get<Words<kStep>>(from + 4 * i);
#pragma unroll
      for (int k = 0; k < kStep; ++k) raw.word[i + k] = words.word[k];
    }
  }

  Format from_;
};

// --- fp8: code to(out) times scale to(out), one rounding --------------------------------------------
template <bool kRowwise, OutType kOut>
struct Fp8Codec {
  using Out = Chunk<kOut>;
  using Word = Bytes16;
  static constexpr bool kIsCopy = false;
  static constexpr int kWords = Out::kValues / 4;
  struct Raw {
    Words<kWords> codes;
    uint32_t scale;  // a row's own, as an fp32
  };

  explicit NGP_DEVICE Fp8Codec(const TableView& table)
      : scale_is_bf16_(table.scale_is_bf16), scale_(round_to(kOut, global_scale_of(table))) {}

  template <class Memory>
  NGP_DEVICE Raw load(const RowAddress& at, uint32_t chunk) const {
    Raw raw{Memory::template get<Words<kWords>>(at.values + static_cast<int64_t>(chunk) * (4 * kWords)), 0};
    if constexpr (kRowwise) {
      raw.scale = scale_is_bf16_ ? static_cast<uint32_t>(Memory::template get<uint16_t>(at.scales)) << 16
                                 : Memory::template get<uint32_t>(at.scales);
    }
    return raw;
  }
  NGP_DEVICE Word decode(const Raw& raw) const {
    const float scale = kRowwise ? round_to(kOut, float_from_bits(raw.scale)) : scale_;
    Out out;
#pragma unroll
    for (int i = 0; i < Out::kPairs; ++i) {
      const Float2 code = e4m3x2_to_floats(static_cast<uint16_t>(raw.codes.word[i / 2] >> (16 * (i % 2))));
      out.set_pair(i, {code.low * scale, code.high * scale});
    }
    return out.bytes;
  }

 private:
  bool scale_is_bf16_;
  float scale_;
};

// --- nvfp4: (code * block scale) * global scale in fp32, one rounding -------------------------------
template <OutType kOut>
struct Nvfp4Codec {
  using Out = Chunk<kOut>;
  using Word = Bytes16;
  static constexpr bool kIsCopy = false;
  using Codes = std::conditional_t<Out::kValues == 8, uint32_t, uint16_t>;
  struct Raw {
    Codes codes;
    uint8_t scale;
  };

  explicit NGP_DEVICE Nvfp4Codec(const TableView& table) : global_scale_(global_scale_of(table)) {}

  template <class Memory>
  NGP_DEVICE Raw load(const RowAddress& at, uint32_t chunk) const {
    const int64_t i = static_cast<int64_t>(chunk);
    return {Memory::template get<Codes>(at.values + i * static_cast<int64_t>(sizeof(Codes))),
            Memory::template get<uint8_t>(at.scales + i / (kBlockElements / Out::kValues))};
  }
  NGP_DEVICE Word decode(const Raw& raw) const {
    // A code's bits, put at the exponent's low end of an fp16, are its value times 2^-14, subnormal included.
    const float scale = e4m3x2_to_floats(raw.scale).low * 0x1p14f;
    const auto value = [&](float code) { return (code * scale) * global_scale_; };
    Float2 pair[Out::kPairs];  // element i of the lower half of the codes beside element i of the upper half
#pragma unroll
    for (int i = 0; i < Out::kPairs; ++i) pair[i] = fp16x2_to_floats(spread(raw.codes, i));
    Out out;
#pragma unroll
    for (int i = 0; i < Out::kPairs / 2; ++i) {
      out.set_pair(i, {value(pair[2 * i].low), value(pair[2 * i + 1].low)});
      out.set_pair(i + Out::kPairs / 2, {value(pair[2 * i].high), value(pair[2 * i + 1].high)});
    }
    return out.bytes;
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

  float global_scale_;
};

// --- A chunk's end ----------------------------------------------------------------------------------
// Rows that the table does not own are zeros; nothing was read for them.
template <class Codec>
NGP_DEVICE typename Codec::Word decode_or_zero(const Codec& codec, bool owned,
                                               const typename Codec::Raw& raw) {
  const typename Codec::Word word = codec.decode(raw);
  return owned ? word : typename Codec::Word{};
}

}  // namespace ngram_ple::gpu
