#include "cpu/read_slots.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "cpu/write_slots.h"

namespace ngram_ple {
namespace {

using cpu::FileRows;
using cpu::ReadResult;
using cpu::ScaleType;

// A temporary file without a name.
class File {
 public:
  explicit File(const std::vector<uint8_t>& bytes) : file_(std::tmpfile()) {
    EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file_), bytes.size());
    std::fflush(file_);
  }
  ~File() { std::fclose(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fileno(file_); }

 private:
  std::FILE* file_;
};

std::vector<uint8_t> some_bytes(int64_t count, int step) {
  std::vector<uint8_t> bytes(count);
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>((i * step + 1) % 126);
  return bytes;
}

constexpr int64_t kRows = 5000;  // several pieces
constexpr int64_t kSkip = 13;

struct Case {
  Format format;
  ScaleType stored;
  int64_t stored_bytes;  // of a row of 160 values
};

class ReadSlots : public testing::TestWithParam<Case> {
 protected:
  RowFormat format_ = make_row_format(GetParam().format, 160);
  std::vector<uint8_t> rows_ = some_bytes(kSkip + kRows * format_.row_bytes, 7);
  std::vector<uint8_t> scales_ = some_bytes(kSkip + kRows * GetParam().stored_bytes, 11);
  std::vector<uint8_t> slots_ = std::vector<uint8_t>(kRows * format_.slot_bytes, 0xA5);

  ReadResult read() {
    const File rows(rows_), scales(scales_);
    return cpu::read_slots(format_, kRows, {rows.fd(), kSkip}, {scales.fd(), kSkip}, GetParam().stored,
                           slots_.data());
  }
};

TEST_P(ReadSlots, FillsSlotsAsWriteSlotsDoes) {
  ASSERT_EQ(read().status, ReadResult::ok);
  std::vector<uint8_t> scales(scales_.begin() + kSkip, scales_.end());
  if (GetParam().stored == ScaleType::bf16) {
    std::vector<uint8_t> wide;
    for (size_t i = 0; i < scales.size(); i += 2) wide.insert(wide.end(), {0, 0, scales[i], scales[i + 1]});
    scales = wide;
  }
  std::vector<uint8_t> expected(slots_.size());
  cpu::write_slots(format_, kRows, rows_.data() + kSkip, scales.data(), expected.data());
  EXPECT_EQ(slots_, expected);
}

TEST_P(ReadSlots, NamesTheRowOfABadScale) {
  for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{1500}, kRows - 1}) {
    const std::vector<uint8_t> good = scales_;
    std::memset(scales_.data() + kSkip + row * GetParam().stored_bytes, 0xFF, GetParam().stored_bytes);
    const ReadResult result = read();
    EXPECT_EQ(result.status, ReadResult::bad_scale);
    EXPECT_EQ(result.at, row);
    scales_ = good;
  }
}

TEST_P(ReadSlots, SaysWhereAFileEnds) {
  scales_.pop_back();
  ReadResult result = read();
  EXPECT_EQ(result.status, ReadResult::scales_failed);
  EXPECT_EQ(result.at, static_cast<int64_t>(scales_.size()));
  EXPECT_EQ(result.error, 0);
  rows_.resize(kSkip + 100);
  result = read();
  EXPECT_EQ(result.status, ReadResult::rows_failed);
  EXPECT_EQ(result.at, kSkip + 100);
}

TEST_P(ReadSlots, SaysWhyReadingFails) {
  const FileRows closed{-1, 0};
  const ReadResult result = cpu::read_slots(format_, 1, closed, closed, GetParam().stored, slots_.data());
  EXPECT_EQ(result.status, ReadResult::rows_failed);
  EXPECT_EQ(result.error, EBADF);
  EXPECT_EQ(cpu::read_slots(format_, 0, closed, closed, GetParam().stored, nullptr).status, ReadResult::ok);
}

INSTANTIATE_TEST_SUITE_P(Formats, ReadSlots,
                         testing::Values(Case{Format::nvfp4, ScaleType::e4m3, 10},
                                         Case{Format::fp8_rowwise, ScaleType::fp32, 4},
                                         Case{Format::fp8_rowwise, ScaleType::bf16, 2}));

}  // namespace
}  // namespace ngram_ple
