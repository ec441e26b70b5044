#include "core/row_format.h"

#include <gtest/gtest.h>

#include <string>

#include "core/table_view.h"

namespace ngram_ple {
namespace {

struct Geometry {
  Format format;
  int64_t head_dim, row_bytes, scale_bytes, scale_offset, slot_bytes;
  bool has_global_scale;
};

// Worked by hand; 160 is the published head_dim.
constexpr Geometry kGeometries[] = {
    {Format::bf16, 160, 320, 0, 0, 320, false},
    {Format::bf16, 7, 14, 0, 0, 14, false},
    {Format::fp16, 160, 320, 0, 0, 320, false},
    {Format::fp32, 160, 640, 0, 0, 640, false},
    {Format::fp32, 1, 4, 0, 0, 4, false},
    {Format::fp8, 160, 160, 0, 0, 160, true},
    {Format::fp8, 257, 257, 0, 0, 257, true},
    {Format::fp8_rowwise, 160, 160, 4, 160, 176, false},
    {Format::fp8_rowwise, 1, 1, 4, 4, 16, false},
    {Format::fp8_rowwise, 12, 12, 4, 12, 16, false},
    {Format::fp8_rowwise, 13, 13, 4, 16, 32, false},
    {Format::fp8_rowwise, 64, 64, 4, 64, 80, false},
    {Format::nvfp4, 160, 80, 10, 80, 96, true},
    {Format::nvfp4, 16, 8, 1, 8, 16, true},
    {Format::nvfp4, 256, 128, 16, 128, 144, true},
};

TEST(RowFormat, WorkedGeometries) {
  for (const Geometry& expected : kGeometries) {
    const RowFormat got = make_row_format(expected.format, expected.head_dim);
    SCOPED_TRACE(std::string(kFormatNames[static_cast<int>(expected.format)]) + " " +
                 std::to_string(expected.head_dim));
    EXPECT_EQ(got.format, expected.format);
    EXPECT_EQ(got.head_dim, expected.head_dim);
    EXPECT_EQ(got.row_bytes, expected.row_bytes);
    EXPECT_EQ(got.scale_bytes, expected.scale_bytes);
    EXPECT_EQ(got.scale_offset, expected.scale_offset);
    EXPECT_EQ(got.slot_bytes, expected.slot_bytes);
    EXPECT_EQ(got.has_global_scale, expected.has_global_scale);
  }
}

TEST(RowFormat, SlotsHoldTheirPartsInOrder) {
  for (int which = 0; which < 6; ++which) {
    const int64_t step = static_cast<Format>(which) == Format::nvfp4 ? kBlockElements : 1;
    for (int64_t head_dim = step; head_dim <= 600; head_dim += step) {
      const RowFormat format = make_row_format(static_cast<Format>(which), head_dim);
      if (format.scale_bytes == 0) {
        ASSERT_EQ(format.slot_bytes, format.row_bytes);
        continue;
      }
      ASSERT_GE(format.scale_offset, format.row_bytes);
      ASSERT_GE(format.slot_bytes, format.scale_offset + format.scale_bytes);
      ASSERT_LT(format.slot_bytes - format.scale_offset - format.scale_bytes, 16);
      ASSERT_EQ(format.slot_bytes % 16, 0);
      ASSERT_TRUE(format.format != Format::fp8_rowwise || format.scale_offset % 4 == 0);
    }
  }
}

TEST(RowFormat, RefusesWhatCannotBe) {
  EXPECT_THROW(make_row_format(Format::bf16, 0), std::invalid_argument);
  EXPECT_THROW(make_row_format(Format::bf16, -1), std::invalid_argument);
  EXPECT_THROW(make_row_format(Format::bf16, kMaxHeadDim + 1), std::invalid_argument);
  EXPECT_NO_THROW(make_row_format(Format::fp32, kMaxHeadDim));
  for (int64_t head_dim : {1, 8, 15, 17, 40}) {
    EXPECT_THROW(make_row_format(Format::nvfp4, head_dim), std::invalid_argument) << head_dim;
  }
}

TEST(RowFormat, NamesParseBack) {
  for (int which = 0; which < 6; ++which)
    EXPECT_EQ(parse_format(kFormatNames[which]), static_cast<Format>(which));
  for (int which = 0; which < 4; ++which)
    EXPECT_EQ(parse_out_type(kOutTypeNames[which]), static_cast<OutType>(which));
  for (const char* name : {"", "BF16", "fp8_rowwise", "bf16 ", "float32"}) {
    EXPECT_FALSE(parse_format(name).has_value()) << name;
    EXPECT_FALSE(parse_out_type(name).has_value()) << name;
  }
}

TEST(TableView, OwnershipAndAddressesBeyond32Bits) {
  TableView table{};
  table.format = make_row_format(Format::bf16, 160);
  table.row_stride = 320;
  table.scale_stride = 4;
  table.row_start = 1000;
  table.row_end = 320001536;
  EXPECT_FALSE(table.owns(999));
  EXPECT_TRUE(table.owns(1000));
  EXPECT_TRUE(table.owns(320001535));
  EXPECT_FALSE(table.owns(320001536));
  EXPECT_FALSE(table.owns(-1));
  const int64_t base = int64_t{1} << 40;  // an address that is only computed with
  table.rows = reinterpret_cast<const uint8_t*>(base);
  EXPECT_EQ(reinterpret_cast<int64_t>(table.row(320001535)) - base, int64_t{320000535} * 320);
  EXPECT_EQ(table.out_row_bytes(OutType::fp32), 640);
  EXPECT_EQ(table.out_row_bytes(OutType::fp16), 320);
  EXPECT_EQ(table.out_row_bytes(OutType::bytes), 320);
}

}  // namespace
}  // namespace ngram_ple
