// Conversions against definitions in double (reference.h), every 16-bit and 8-bit pattern.
#include "core/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "reference.h"

namespace ngram_ple {
namespace {

using reference::HalfKind;

struct Half {
  const char* name;
  HalfKind kind;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
};

float widen_bf16(uint16_t bits) { return bf16_to_float(bits); }
float widen_fp16(uint16_t bits) { return fp16_to_float(bits); }
uint16_t narrow_bf16(float value) { return float_to_bf16(value); }
uint16_t narrow_fp16(float value) { return float_to_fp16(value); }

constexpr Half kHalves[] = {{"bf16", reference::kBf16, widen_bf16, narrow_bf16},
                            {"fp16", reference::kFp16, widen_fp16, narrow_fp16}};

class HalfTest : public testing::TestWithParam<Half> {
 protected:
  const Half& half() const { return GetParam(); }
  uint16_t infinity() const { return static_cast<uint16_t>(half().kind.top() << half().kind.mantissa_bits); }

  // from_float(value) as the definition has it; of NaNs only that they are.
  void expect_rounded(float value) const {
    const uint16_t got = half().from_float(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(half().to_float(got)));
    } else {
      ASSERT_EQ(got, reference::encode_half(value, half().kind)) << half().name << " of " << value;
    }
  }
};

TEST_P(HalfTest, EveryPatternWidensAndComesBack) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const uint16_t bits = static_cast<uint16_t>(pattern);
    const float value = half().to_float(bits);
    const double expected = reference::decode_half(bits, half().kind);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_TRUE(std::isnan(half().to_float(half().from_float(value)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << pattern;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << pattern;
    ASSERT_EQ(half().from_float(value), bits) << pattern;
  }
}

TEST_P(HalfTest, TiesGoToEvenAndTheirNeighboursToTheNearer) {
  for (uint16_t low = 0; low < infinity(); ++low) {
    const double below = reference::decode_half(low, half().kind);
    const bool last = low + 1 == infinity();
    const double above = last ? std::ldexp(1, half().kind.bias() + 1)
                              : reference::decode_half(static_cast<uint16_t>(low + 1), half().kind);
    const float tie = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(tie), (below + above) / 2);
    const uint16_t high = static_cast<uint16_t>(low + 1), even = low % 2 == 0 ? low : high;
    ASSERT_EQ(half().from_float(tie), even) << low;
    ASSERT_EQ(half().from_float(-tie), even | 0x8000) << low;
    ASSERT_EQ(half().from_float(std::nextafter(tie, 0.0f)), low) << low;
    ASSERT_EQ(half().from_float(std::nextafter(tie, INFINITY)), high) << low;
  }
}

TEST_P(HalfTest, ExtremesOfFp32) {
  for (float value : {0.0f,
                      -0.0f,
                      INFINITY,
                      -INFINITY,
                      NAN,
                      -NAN,
                      std::numeric_limits<float>::max(),
                      -std::numeric_limits<float>::max(),
                      std::numeric_limits<float>::min(),
                      std::numeric_limits<float>::denorm_min(),
                      -std::numeric_limits<float>::denorm_min(),
                      65504.0f,
                      65519.996f,
                      65520.0f,
                      0x1p-24f,
                      0x1p-25f,
                      0x1.000002p-25f,
                      0x1p-14f,
                      0x1.ffcp-15f,
                      0x1.ffep-15f}) {
    expect_rounded(value);
  }
}

TEST_P(HalfTest, RandomBitsRoundAsDefined) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000000 && !HasFatalFailure(); ++i) expect_rounded(float_from_bits(random()));
}

std::string name_of(const testing::TestParamInfo<Half>& half) { return half.param.name; }

INSTANTIATE_TEST_SUITE_P(Numeric, HalfTest, testing::ValuesIn(kHalves), name_of);

TEST(Numeric, EveryE4m3Code) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    const double expected = reference::e4m3(static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(static_cast<double>(value), expected) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
}

TEST(Numeric, EveryE2m1Code) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 256; ++code) {  // the upper nibble does not count
    const float value = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(std::fabs(value), kMagnitudes[code & 7]) << code;
    EXPECT_EQ(std::signbit(value), (code & 8) != 0) << code;
    EXPECT_EQ(static_cast<double>(value), reference::e2m1(static_cast<uint8_t>(code & 15))) << code;
  }
}

// Codes 0 .. last in order of their magnitudes: all numbers and their ties.
void expect_codes(uint8_t (*encode)(float), double (*decode)(uint8_t), uint8_t last, uint8_t sign) {
  const float most = static_cast<float>(decode(last));
  for (uint8_t code = 0; code <= last; ++code) {
    const float value = static_cast<float>(decode(code));
    EXPECT_EQ(encode(value), code);
    EXPECT_EQ(encode(-value), code | sign);
    if (code == last) continue;
    const uint8_t next = static_cast<uint8_t>(code + 1);
    const float tie = static_cast<float>((decode(code) + decode(next)) / 2);
    EXPECT_EQ(encode(tie), code % 2 == 0 ? code : next) << tie;
    EXPECT_EQ(encode(-tie), (code % 2 == 0 ? code : next) | sign) << tie;
    EXPECT_EQ(encode(std::nextafter(tie, 0.0f)), code) << tie;
    EXPECT_EQ(encode(std::nextafter(tie, INFINITY)), next) << tie;
  }
  for (float value : {std::nextafter(most, INFINITY), 2 * most, 3e38f, INFINITY}) {
    EXPECT_EQ(encode(value), last) << value;
    EXPECT_EQ(encode(-value), last | sign) << value;
  }
  for (float value : {1e-40f, 0x1p-149f, 1e-30f}) {
    EXPECT_EQ(encode(value), 0);
    EXPECT_EQ(encode(-value), sign);
  }
  EXPECT_EQ(encode(float_from_bits(0x7FC00000u)), 0);
  EXPECT_EQ(encode(float_from_bits(0xFFC00001u)), sign);
  EXPECT_EQ(encode(float_from_bits(0x7F800001u)), 0);
}

TEST(Numeric, NumbersAndTiesToE4m3) {
  expect_codes([](float value) { return float_to_e4m3(value); },
               [](uint8_t code) { return reference::e4m3(code); }, 0x7E, 0x80);
}

TEST(Numeric, NumbersAndTiesToE2m1) {
  expect_codes([](float value) { return float_to_e2m1(value); },
               [](uint8_t code) { return reference::e2m1(code); }, 7, 8);
}

TEST(Numeric, SelectTakesWholeWords) {
  EXPECT_EQ(select(true, 0xFFFFFFFFu, 0u), 0xFFFFFFFFu);
  EXPECT_EQ(select(false, 0xFFFFFFFFu, 0x12345678u), 0x12345678u);
}

}  // namespace
}  // namespace ngram_ple
