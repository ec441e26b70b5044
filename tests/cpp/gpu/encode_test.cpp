// encode and row_amax on the device against the definitions of encoded.h.
#include <gtest/gtest.h>

#include "cpp/encoded.h"
#include "cpp/gpu/tables.h"
#include "gpu/launch.h"

namespace ngram_ple::test {
namespace {

using namespace testing_encoded;

constexpr Format kPlain[] = {Format::bf16, Format::fp16, Format::fp32};
constexpr Format kAll[] = {Format::bf16, Format::fp16,        Format::fp32,
                           Format::fp8,  Format::fp8_rowwise, Format::nvfp4};

// Bytes beyond an aligned address.
struct Offsets {
  size_t values = 0, rows = 0, scales = 0;
};

void check_encode(const EncodeCase& what, Random& random, const Offsets& at = {}, float scale = 0) {
  const std::vector<uint8_t> numbers = make_numbers(what, random);
  const float global_scale = scale == 0 ? table_scale(what, numbers) : scale;
  const Encoded wanted = expected_rows(what, numbers, global_scale);
  const DeviceBuffer values(numbers, at.values), global(std::vector<float>{global_scale});
  const GuardedOutput rows(wanted.rows.size(), at.rows), scales(wanted.scales.size(), at.scales);
  const RowFormat format = make_row_format(what.to, what.head_dim);
  gpu::encode({what.from, format, values.data(), rows.data(), scales.data(),
               format.has_global_scale ? global.as<float>() : nullptr, what.scale_is_bf16},
              what.rows, nullptr);
  const std::string name = std::string(kFormatNames[static_cast<int>(what.from)]) + " to " +
                           kFormatNames[static_cast<int>(what.to)] + ", head_dim " +
                           std::to_string(what.head_dim) + ", offsets " + std::to_string(at.values) + " " +
                           std::to_string(at.rows) + " " + std::to_string(at.scales);
  EXPECT_TRUE(rows.guards_intact() && scales.guards_intact()) << name;
  EXPECT_EQ(first_difference(rows.take(), wanted.rows, OutType::bytes), -1) << name;
  EXPECT_EQ(first_difference(scales.take(), wanted.scales, OutType::bytes), -1) << name << ", scales";
}

TEST(Encode, EveryFormatFromEveryNumber) {
  Random random(1);
  for (Format from : kPlain) {
    for (Format to : kAll) {
      for (int64_t head_dim : {1, 7, 16, 48, 160, 1040}) {
        if (!encode_case_exists(to, head_dim)) continue;
        for (int kind = 0; kind < 4; ++kind) {
          EncodeCase what{from, to, head_dim, 17, kind >= 2 && to == Format::fp8_rowwise, kind % 2 == 1};
          check_encode(what, random);
        }
      }
    }
  }
}

// Rows that 4, 8, 16, 32 or 64 lanes share, the last lane or wave not full, and rows longer than those hold.
TEST(Encode, RowsOfEveryLength) {
  Random random(7);
  for (Format from : kPlain) {
    for (int64_t head_dim : {8, 24, 64, 128, 168, 256, 328, 640, 1272, 1288, 2560, 2568, 5128}) {
      for (int kind = 0; kind < 4; ++kind) {
        check_encode({from, Format::fp8_rowwise, head_dim, 67, kind >= 2, kind % 2 == 1}, random);
      }
    }
  }
}

TEST(Encode, RowsOfAnyLengthByByte) {
  Random random(8);
  for (int64_t head_dim : {3, 257, 521, 1001, 5129}) {
    check_encode({Format::bf16, Format::fp8_rowwise, head_dim, 9, true, true}, random);
  }
}

// Values, rows and scales, each where the others are aligned.
TEST(Encode, OneOfThemUnaligned) {
  Random random(9);
  for (Format to : kAll) {
    for (size_t scales_at : {0, 1, 2, 4}) {
      for (const auto& [values_at, rows_at] :
           {std::pair<size_t, size_t>{0, 0}, {0, 8}, {0, 4}, {0, 2}, {2, 0}}) {
        for (bool bf16 : {false, true}) {
          const EncodeCase what{Format::bf16, to, 160, 7, bf16 && to == Format::fp8_rowwise, true};
          check_encode(what, random, {values_at, rows_at, scales_at});
        }
      }
    }
  }
}

TEST(Encode, UnalignedNumbersAndRows) {
  Random random(2);
  for (Format to : kAll) {
    for (size_t offset : {1, 2, 4, 8})
      check_encode({Format::bf16, to, 32, 10}, random, {offset, offset, offset % 3});
  }
}

TEST(Encode, ScalesThatDoNotFit) {
  Random random(3);
  for (Format to : {Format::fp8, Format::nvfp4}) {
    for (float scale : {0x1p-117f, 1e-12f, 1e-5f, 3.0f, 1e30f, 3e38f}) {
      check_encode({Format::fp32, to, 32, 11, false, true}, random, {}, scale);
    }
  }
}

// Every multiple of 1/64 up to 8 and its neighbours, and what is not finite, under the scale 1.
TEST(Encode, EveryTieOfNvfp4) {
  std::vector<uint8_t> numbers;
  EncodeCase what{Format::fp32, Format::nvfp4, 16, 0};
  const auto push_block = [&](float value) {
    push_plain(numbers, what.from, 6.0f);  // so that the block's scale is 1
    for (int i = 0; i < 5; ++i) {
      for (float sign : {1.0f, -1.0f, 1.0f}) {
        const float moved = i == 0 ? value : std::nextafter(value, i % 2 == 0 ? 0.0f : INFINITY);
        push_plain(numbers, what.from, sign * moved);
      }
    }
    ++what.rows;
  };
  for (int i = 0; i <= 384; ++i) push_block(static_cast<float>(i) / 64);
  push_block(NAN);
  push_block(INFINITY);
  const Encoded wanted = expected_rows(what, numbers, 1.0f);
  const DeviceBuffer values(numbers), global(std::vector<float>{1.0f});
  const GuardedOutput rows(wanted.rows.size()), scales(wanted.scales.size());
  gpu::encode({what.from, make_row_format(what.to, 16), values.data(), rows.data(), scales.data(),
               global.as<float>(), false},
              what.rows, nullptr);
  EXPECT_EQ(first_difference(rows.take(), wanted.rows, OutType::bytes), -1);
  EXPECT_EQ(first_difference(scales.take(), wanted.scales, OutType::bytes), -1);
}

TEST(Encode, NothingToDo) {
  const DeviceBuffer global(std::vector<float>{1.0f});
  for (Format to : kAll) {
    gpu::encode({Format::bf16, make_row_format(to, 32), nullptr, nullptr, nullptr, global.as<float>(), false},
                0, nullptr);
  }
}

TEST(RowAmax, AsDefined) {
  Random random(4);
  for (Format from : kPlain) {
    for (int64_t head_dim : {1, 9, 64, 160, 328, 600, 1288, 2568, 5128}) {
      for (bool finite_only : {false, true}) {
        EncodeCase what{from, from, head_dim, 21};
        what.odd = true;
        const std::vector<uint8_t> numbers = make_numbers(what, random);
        std::vector<uint8_t> wanted;
        for (int64_t row = 0; row < what.rows; ++row) {
          float most = 0;
          for (int64_t i = 0; i < head_dim; ++i) {
            const float value = std::fabs(
                plain_value(from, &numbers[static_cast<size_t>(row * head_dim + i) * plain_bytes(from)]));
            if (finite_only && !std::isfinite(value)) continue;
            if (std::isnan(most) || value < most) continue;  // NaN stays
            most = value;
          }
          push_plain(wanted, Format::fp32, most);
        }
        const DeviceBuffer values(numbers);
        const GuardedOutput out(wanted.size());
        gpu::row_amax(from, values.data(), what.rows, head_dim, finite_only,
                      reinterpret_cast<float*>(out.data()), nullptr);
        EXPECT_TRUE(out.guards_intact());
        EXPECT_EQ(first_difference(out.take(), wanted, OutType::fp32), -1);
      }
    }
  }
}

}  // namespace
}  // namespace ngram_ple::test
