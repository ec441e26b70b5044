// Encoding on the CPU against definitions by exhaustive search (encoded.h), and what the error sums say.
#include "cpu/encode.h"

#include <gtest/gtest.h>

#include "cpu/encode_error.h"
#include "encoded.h"
#include "memory.h"

namespace ngram_ple {
namespace {

using namespace testing_encoded;
using testing_memory::ExactBytes;

constexpr Format kPlain[] = {Format::bf16, Format::fp16, Format::fp32};
constexpr Format kAll[] = {Format::bf16, Format::fp16,        Format::fp32,
                           Format::fp8,  Format::fp8_rowwise, Format::nvfp4};

struct Call {
  EncodeCase what;
  std::vector<uint8_t> numbers;
  float global_scale;
  ExactBytes values, rows, scales;
  cpu::EncodeArgs args;

  Call(const EncodeCase& given, std::vector<uint8_t> bytes, float scale)
      : what(given),
        numbers(std::move(bytes)),
        global_scale(scale),
        values(numbers.size(), 1),
        rows(static_cast<size_t>(what.rows * format().row_bytes), 1),
        scales(static_cast<size_t>(what.rows * (what.scale_is_bf16 ? 2 : format().scale_bytes)), 1),
        args{what.from, format(), format().has_global_scale ? scale : 1.0f, what.scale_is_bf16} {
    if (!numbers.empty()) std::memcpy(values.data(), numbers.data(), numbers.size());
    cpu::encode(args, values.data(), what.rows, rows.data(), scales.data());
  }
  Call(const EncodeCase& given, std::vector<uint8_t> bytes) : Call(given, bytes, table_scale(given, bytes)) {}

  RowFormat format() const { return make_row_format(what.to, what.head_dim); }
  std::string name() const {
    return std::string(kFormatNames[static_cast<int>(what.from)]) + " to " +
           kFormatNames[static_cast<int>(what.to)] + ", head_dim " + std::to_string(what.head_dim);
  }
  void expect_as_defined() {
    const Encoded wanted = expected_rows(what, numbers, global_scale);
    EXPECT_EQ(std::vector<uint8_t>(rows.data(), rows.data() + rows.size()), wanted.rows) << name();
    EXPECT_EQ(std::vector<uint8_t>(scales.data(), scales.data() + scales.size()), wanted.scales) << name();
  }
  // Encodes once more.
  cpu::EncodeError error() {
    cpu::EncodeError sums;
    cpu::encode_measured(args, values.data(), what.rows, rows.data(), scales.data(), sums);
    return sums;
  }
  // What decoding gives, and what the scales reach: value by value, from the codes' definitions.
  cpu::EncodeError expected_error() const {
    cpu::EncodeError sums;
    for (int64_t i = 0; i < what.rows * what.head_dim; ++i) {
      const size_t at = static_cast<size_t>(i), row = at / static_cast<size_t>(what.head_dim);
      const float value = plain_value(what.from, &numbers[at * plain_bytes(what.from)]);
      if (!std::isfinite(value)) {
        if (sums.not_finite++ == 0) sums.first_not_finite = static_cast<int64_t>(row);
        continue;
      }
      float scale = args.global_scale, reach = 448.0f;
      if (what.to == Format::fp8_rowwise) {
        const size_t bytes = what.scale_is_bf16 ? 2 : 4;
        scale = plain_value(what.scale_is_bf16 ? Format::bf16 : Format::fp32, scales.data() + row * bytes);
      }
      float decoded;
      if (what.to == Format::nvfp4) {
        const uint8_t nibble = (rows.data()[at / 2] >> (at % 2 * 4)) & 0xF;
        const float stored = static_cast<float>(reference::e4m3(scales.data()[at / 16]));
        const float magnitude = static_cast<float>(reference::e2m1(nibble & 7)) * stored * scale;
        decoded = (nibble & 8) != 0 ? -magnitude : magnitude;
        reach = 6.0f * stored;
      } else if (what.to == Format::fp8 || what.to == Format::fp8_rowwise) {
        decoded = static_cast<float>(reference::e4m3(rows.data()[at])) * scale;
      } else {
        decoded = plain_value(what.to, rows.data() + at * plain_bytes(what.to));
        reach = most_of(what.to);
      }
      const double off = static_cast<double>(value) - static_cast<double>(decoded);
      sums.squared_error += off * off;
      sums.squared_value += static_cast<double>(value) * static_cast<double>(value);
      sums.largest_error = std::max(sums.largest_error, std::fabs(value - decoded));
      sums.saturated += std::fabs(value) > reach * scale;
      sums.zeroed += value != 0 && decoded == 0;
    }
    return sums;
  }
  void expect_error_as_defined() {
    const std::vector<uint8_t> before(rows.data(), rows.data() + rows.size());
    const cpu::EncodeError wanted = expected_error(), got = error();
    EXPECT_EQ(std::vector<uint8_t>(rows.data(), rows.data() + rows.size()), before) << name();
    // errors whose squares fp32 does not hold are nothing beside the values
    EXPECT_NEAR(got.squared_error, wanted.squared_error,
                1e-5 * wanted.squared_error + 1e-30 * wanted.squared_value)
        << name();
    EXPECT_NEAR(got.squared_value, wanted.squared_value, 1e-5 * wanted.squared_value) << name();
    EXPECT_EQ(got.largest_error, wanted.largest_error) << name();
    EXPECT_EQ(got.saturated, wanted.saturated) << name();
    EXPECT_EQ(got.zeroed, wanted.zeroed) << name();
    EXPECT_EQ(got.not_finite, wanted.not_finite) << name();
    EXPECT_EQ(got.first_not_finite, wanted.first_not_finite) << name();
  }
};

// Head dims and rows: more and less than what is encoded at a time, whole multiples of it and others.
TEST(Encode, EveryFormatFromEveryNumber) {
  std::mt19937_64 random(1);
  for (Format from : kPlain) {
    for (Format to : kAll) {
      for (int64_t head_dim : {1, 7, 16, 33, 48, 160, 1040}) {
        for (int64_t rows : {1, 2, 17}) {
          if (!encode_case_exists(to, head_dim)) continue;
          for (int kind = 0; kind < 4; ++kind) {
            EncodeCase what{from, to, head_dim, rows, kind >= 2 && to == Format::fp8_rowwise, kind % 2 == 1};
            Call call(what, make_numbers(what, random));
            call.expect_as_defined();
            call.expect_error_as_defined();
          }
        }
      }
    }
  }
}

// NaN of every kind, denormals, infinities: all there are of 16 bits, some of 32.
TEST(Encode, AnyBits) {
  std::mt19937_64 random(6);
  for (Format from : kPlain) {
    std::vector<uint8_t> bytes(static_cast<size_t>(1 << 16) * plain_bytes(from));
    for (size_t i = 0; i < 1 << 16; ++i) {
      const uint32_t bits = from == Format::fp32 ? static_cast<uint32_t>(random()) : static_cast<uint32_t>(i);
      std::memcpy(&bytes[i * plain_bytes(from)], &bits, plain_bytes(from));
    }
    for (Format to : {Format::fp8, Format::fp8_rowwise, Format::nvfp4}) {
      for (float scale : {1.0f, 0x1p-117f, 0x1.234p-20f}) {
        Call call(EncodeCase{from, to, 32, 1 << 11}, bytes, scale);
        call.expect_as_defined();
        call.expect_error_as_defined();
      }
    }
  }
}

// Every code, every tie between two, and the numbers next to these, where scales are 1.
TEST(Encode, TiesAndTheirNeighbours) {
  for (Format to : {Format::fp8, Format::nvfp4}) {
    const bool blocks = to == Format::nvfp4;
    std::vector<float> values;
    for (uint8_t code = 0; code < (blocks ? 7 : 0x7E); ++code) {
      const auto decode = blocks ? reference::e2m1 : reference::e4m3;
      const double low = decode(code), high = decode(static_cast<uint8_t>(code + 1));
      for (double at : {low, (low + high) / 2, high}) {
        const float value = static_cast<float>(at);
        for (float near : {value, std::nextafter(value, 0.0f), std::nextafter(value, INFINITY)}) {
          if (blocks && near > 6) continue;
          if (blocks && values.size() % 16 == 0) values.push_back(6);  // sets the scale of its block
          values.push_back(near);
          if (blocks && values.size() % 16 == 0) values.push_back(-6);
          values.push_back(-near);
        }
      }
    }
    values.resize(round_up(static_cast<int64_t>(values.size()), 16), 6);
    std::vector<uint8_t> numbers;
    for (float value : values) push_plain(numbers, Format::fp32, value);
    Call(EncodeCase{Format::fp32, to, 16, static_cast<int64_t>(values.size()) / 16}, numbers, 1.0f)
        .expect_as_defined();
  }
}

TEST(Encode, ScalesThatDoNotFit) {
  std::mt19937_64 random(2);
  for (Format to : {Format::fp8, Format::nvfp4}) {
    for (float scale : {0x1p-117f, 1e-12f, 1e-5f, 3.0f, 1e30f, 3e38f}) {
      EncodeCase what{Format::fp32, to, 32, 11};
      what.odd = true;
      Call call(what, make_numbers(what, random), scale);
      call.expect_as_defined();
      call.expect_error_as_defined();
    }
  }
}

TEST(Encode, NothingToDo) {
  for (Format to : kAll) {
    EncodeCase what;
    what.to = to;
    what.rows = 0;
    EXPECT_EQ(Call(what, {}, 1.0f).error().squared_value, 0);
  }
}

TEST(LargestMagnitude, AsDefined) {
  std::mt19937_64 random(3);
  for (Format from : kPlain) {
    for (int64_t count : {0, 1, 7, 31, 32, 33, 64, 65, 130, 1000}) {
      EncodeCase what{from, from, count, 1};
      for (bool odd : {false, true}) {
        what.odd = odd;
        const std::vector<uint8_t> numbers = make_numbers(what, random);
        std::vector<float> values;
        for (size_t at = 0; at < numbers.size(); at += plain_bytes(from))
          values.push_back(plain_value(from, &numbers[at]));
        const bool has_nan = std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); });
        const bool has_infinity =
            std::any_of(values.begin(), values.end(), [](float x) { return std::isinf(x); });
        const float finite = finite_amax(values.data(), count);
        EXPECT_EQ(cpu::largest_magnitude(from, numbers.data(), count, true), finite);
        const float any = cpu::largest_magnitude(from, numbers.data(), count, false);
        EXPECT_EQ(std::isnan(any), has_nan);
        EXPECT_TRUE(has_nan || any == (has_infinity ? INFINITY : finite));
      }
    }
  }
}

TEST(EncodeError, OfNothingLost) {
  std::mt19937_64 random(4);
  EncodeCase what{Format::bf16, Format::fp32, 24, 40};
  const cpu::EncodeError sums = Call(what, make_numbers(what, random)).error();
  EXPECT_GT(sums.squared_value, 0);
  EXPECT_EQ(sums.squared_error, 0);
  EXPECT_EQ(sums.largest_error, 0);
  EXPECT_EQ(sums.saturated + sums.zeroed + sums.not_finite, 0);
}

// One block: 6 and its like are codes, 7 is beyond, 0.2 rounds to 0, 0.3 to 0.5.
TEST(EncodeError, CountsByHand) {
  std::vector<uint8_t> numbers;
  for (float value : {6.0f, -7.0f, 0.2f, 0.3f, 0.0f, -0.0f, INFINITY, NAN, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 1.0f,
                      1.0f, 1.0f}) {
    push_plain(numbers, Format::fp32, value);
  }
  for (int i = 0; i < 16; ++i) push_plain(numbers, Format::fp32, 1e25f);  // squares that fp32 does not hold
  EncodeCase what{Format::fp32, Format::nvfp4, 16, 2};
  const cpu::EncodeError sums = Call(what, numbers, 1.0f / 448.0f).error();
  // the second row's scale is the largest, 448: it reaches 6
  EXPECT_EQ(sums.not_finite, 2);
  EXPECT_EQ(sums.first_not_finite, 0);
  EXPECT_EQ(sums.zeroed, 1);
  EXPECT_GE(sums.saturated, 16);
  EXPECT_NEAR(sums.squared_value / (16 * 1e50), 1, 1e-6);
  EXPECT_NEAR(sums.squared_error / (16 * 1e50), 1, 1e-6);
}

TEST(EncodeError, GaussianRows) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 0.02f);
  for (const auto& [to, most] :
       {std::pair{Format::fp8, 0.027}, {Format::fp8_rowwise, 0.027}, {Format::nvfp4, 0.097}}) {
    EncodeCase what{Format::bf16, to, 160, 2000, to == Format::fp8_rowwise};
    std::vector<uint8_t> numbers;
    for (int64_t i = 0; i < what.rows * what.head_dim; ++i) push_plain(numbers, what.from, normal(random));
    const cpu::EncodeError sums = Call(what, numbers).error();
    const double relative = std::sqrt(sums.squared_error / sums.squared_value);
    EXPECT_LT(relative, most);
    EXPECT_GT(relative, most / 2);
  }
}

}  // namespace
}  // namespace ngram_ple
