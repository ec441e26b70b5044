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
  cpu::EncodeError error() {
    cpu::EncodeError sums;
    cpu::add_encode_error(args, values.data(), what.rows, rows.data(), scales.data(), sums);
    return sums;
  }
};

TEST(Encode, EveryFormatFromEveryNumber) {
  std::mt19937_64 random(1);
  for (Format from : kPlain) {
    for (Format to : kAll) {
      for (int64_t head_dim : {1, 7, 16, 48, 160, 1040}) {
        if (!encode_case_exists(to, head_dim)) continue;
        for (int kind = 0; kind < 4; ++kind) {
          EncodeCase what{from, to, head_dim, 17, kind >= 2 && to == Format::fp8_rowwise, kind % 2 == 1};
          Call(what, make_numbers(what, random)).expect_as_defined();
        }
      }
    }
  }
}

TEST(Encode, ScalesThatDoNotFit) {
  std::mt19937_64 random(2);
  for (Format to : {Format::fp8, Format::nvfp4}) {
    for (float scale : {0x1p-117f, 1e-12f, 1e-5f, 3.0f, 1e30f, 3e38f}) {
      EncodeCase what{Format::fp32, to, 32, 11};
      what.odd = true;
      Call(what, make_numbers(what, random), scale).expect_as_defined();
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
