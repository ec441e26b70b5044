// CPU decode: every code with scales of every kind, against definitions.
#include <gtest/gtest.h>

#include "cpu/lookup.h"
#include "tables.h"

namespace ngram_ple {
namespace {

using namespace testing_tables;

void expect_decoded(const TableView& view, OutType out) {
  const size_t row_bytes = static_cast<size_t>(view.out_row_bytes(out));
  const int64_t rows = view.row_end - view.row_start;
  testing_memory::GuardedBytes result(static_cast<size_t>(rows) * row_bytes);
  cpu::decode(view, out, 0, rows / 2, result.data());
  cpu::decode(view, out, rows / 2, rows, result.data() + static_cast<size_t>(rows / 2) * row_bytes);
  ASSERT_TRUE(result.intact()) << name_of(view, out);
  for (int64_t r = 0; r < rows; ++r) {
    ASSERT_TRUE(same_row(result.data() + static_cast<size_t>(r) * row_bytes,
                         expected_row(view, view.row_start + r, out), out))
        << name_of(view, out) << ", row " << r << ", global scale "
        << (view.global_scale ? *view.global_scale : 0.0f);
  }
}

// Every exponent of fp32 with a plain, a full and a tie-making mantissa, both signs; then zeros, infinity,
// NaN.
std::vector<float> all_kinds_of_scales() {
  std::vector<float> scales{0.0f, -0.0f, INFINITY, -INFINITY, NAN};
  for (int exponent = -149; exponent <= 127; ++exponent) {
    for (float mantissa : {1.0f, 1.99609375f, 1.00390625f, 1.33203125f, 1.9999999f}) {
      const float scale = std::ldexp(mantissa, exponent);
      scales.insert(scales.end(), {scale, -scale});
    }
  }
  return scales;
}

TEST(Decode, EveryFp8CodeWithEveryKindOfGlobalScale) {
  std::mt19937_64 random(1);
  for (int64_t head_dim : {256, 128, 8}) {  // the last below a vector: the scalar path
    HeldTable table(Format::fp8, head_dim, 256 / head_dim, random);
    for (int code = 0; code < 256; ++code) table.row(0)[code] = static_cast<uint8_t>(code);
    for (float scale : all_kinds_of_scales()) {
      table.global_scale = scale;
      for (OutType out : kOutTypes) expect_decoded(table.view, out);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Decode, RowsOfChangingScales) {
  std::mt19937_64 random(2);
  const std::vector<float> scales = all_kinds_of_scales();
  for (Scales where : {Scales::inside, Scales::apart}) {
    HeldTable table(Format::fp8_rowwise, 41, static_cast<int64_t>(scales.size()), random, where);
    for (size_t r = 0; r < scales.size(); ++r)
      std::memcpy(table.scale(static_cast<int64_t>(r)), &scales[r], 4);
    for (OutType out : kOutTypes) expect_decoded(table.view, out);
  }
}

TEST(Decode, EveryBf16RowScale) {
  std::mt19937_64 random(3);
  HeldTable table(Format::fp8_rowwise, 17, 65536, random, Scales::apart_bf16);
  for (int64_t r = 0; r < 65536; ++r) {
    const uint16_t bits = static_cast<uint16_t>(r);
    std::memcpy(table.scale(r), &bits, 2);
  }
  for (OutType out : kOutTypes) expect_decoded(table.view, out);
}

TEST(Decode, EveryNvfp4CodeAndBlockScale) {
  std::mt19937_64 random(4);
  for (Scales where : {Scales::inside, Scales::apart}) {
    HeldTable table(Format::nvfp4, 32, 256, random, where);
    for (int64_t r = 0; r < 256; ++r) {
      for (int b = 0; b < 16; ++b) table.row(r)[b] = static_cast<uint8_t>(b % 8 * 2 | (b % 8 * 2 + 1) << 4);
      table.scale(r)[0] = static_cast<uint8_t>(r);
      table.scale(r)[1] = static_cast<uint8_t>(255 - r);
    }
    for (float scale : {1.0f, 0.0f, -0.0f, 1.7e-4f, -3.3f, 1e-38f, 1e-44f, 3e38f, -INFINITY, INFINITY, NAN}) {
      table.global_scale = scale;
      for (OutType out : kOutTypes) expect_decoded(table.view, out);
    }
  }
}

TEST(Decode, EveryBf16AndFp16Value) {
  std::mt19937_64 random(5);
  for (Format format : {Format::bf16, Format::fp16}) {
    HeldTable table(format, 256, 256, random);
    for (int i = 0; i < 65536; ++i) {
      const uint16_t bits = static_cast<uint16_t>(i);
      std::memcpy(table.row(0) + 2 * i, &bits, 2);
    }
    for (OutType out : kOutTypes) expect_decoded(table.view, out);
  }
}

TEST(Decode, NothingToDo) {
  std::mt19937_64 random(6);
  for (Format format : kFormats) {
    HeldTable table(format, 16, 0, random);
    for (OutType out : kOutTypes) cpu::decode(table.view, out, 0, 0, nullptr);
  }
}

}  // namespace
}  // namespace ngram_ple
