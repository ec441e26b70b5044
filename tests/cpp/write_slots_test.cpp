#include "cpu/write_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ngram_ple {
namespace {

class WriteSlots : public testing::TestWithParam<int64_t> {};

// Every format with scales, exactly sized memory (the sanitizers watch its ends), poisoned slots.
TEST_P(WriteSlots, PutsEveryByteInItsPlace) {
  for (const Format which : {Format::fp8_rowwise, Format::nvfp4}) {
    if (which == Format::nvfp4 && GetParam() % kBlockElements != 0) continue;
    const RowFormat format = make_row_format(which, GetParam());
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 7, 18, 100}) {
      std::vector<uint8_t> codes(rows * format.row_bytes), scales(rows * format.scale_bytes);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 + 1);
      for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(i * 11 + 3);
      std::vector<uint8_t> slots(rows * format.slot_bytes, 0xA5), expected(slots.size(), 0);
      for (int64_t i = 0; i < rows; ++i) {
        uint8_t* slot = expected.data() + i * format.slot_bytes;
        std::copy_n(codes.data() + i * format.row_bytes, format.row_bytes, slot);
        std::copy_n(scales.data() + i * format.scale_bytes, format.scale_bytes, slot + format.scale_offset);
      }
      cpu::write_slots(format, rows, codes.data(), scales.data(), slots.data());
      ASSERT_EQ(slots, expected) << kFormatNames[static_cast<int>(which)] << ", rows " << rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, WriteSlots,
                         testing::Values(1, 2, 4, 7, 12, 13, 16, 32, 48, 64, 96, 128, 160, 256, 257, 512));

}  // namespace
}  // namespace ngram_ple
