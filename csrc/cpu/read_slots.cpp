#include "cpu/read_slots.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "cpu/write_slots.h"

namespace ngram_ple::cpu {
namespace {

constexpr int64_t kPieceBytes = 256 << 10;

// False when the file ends or fails first; then `result` says where and why.
bool read_all(FileRows from, int64_t skip, uint8_t* to, int64_t bytes, ReadResult& result) {
  int64_t at = from.offset + skip;
  while (bytes > 0) {
    const ssize_t count = pread(from.fd, to, static_cast<size_t>(bytes), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      result.at = at;
      result.error = count < 0 ? errno : 0;
      return false;
    }
    to += count;
    at += count;
    bytes -= count;
  }
  return true;
}

// fp32 bits of `count` scales, bf16 or fp32 as stored.
void widen(ScaleType stored, int64_t count, const uint8_t* from, uint8_t* to) {
  if (stored == ScaleType::fp32) {
    std::memcpy(to, from, count * sizeof(uint32_t));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t high;
    std::memcpy(&high, from + i * sizeof high, sizeof high);
    const uint32_t bits = static_cast<uint32_t>(high) << 16;
    std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
  }
}

constexpr uint8_t kE4m3Nan = 0x7F;
constexpr uint32_t kFp32Exponent = 0x7F800000;

uint32_t fp32_bits(const uint8_t* scales, int64_t i) {
  uint32_t bits;
  std::memcpy(&bits, scales + i * sizeof bits, sizeof bits);
  return bits;
}

// The first scale that is NaN or infinite, -1 when there is none. A pass that compilers vectorise comes
// first: hardly any is.
int64_t first_bad(ScaleType stored, int64_t count, const uint8_t* scales) {
  if (stored == ScaleType::e4m3) {
    uint8_t most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max<uint8_t>(most, scales[i] & kE4m3Nan);
    if (most != kE4m3Nan) return -1;
    return std::find_if(scales, scales + count, [](uint8_t code) { return (code & kE4m3Nan) == kE4m3Nan; }) -
           scales;
  }
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, fp32_bits(scales, i) & kFp32Exponent);
  if (most != kFp32Exponent) return -1;
  int64_t i = 0;
  while ((fp32_bits(scales, i) & kFp32Exponent) != kFp32Exponent) ++i;
  return i;
}

}  // namespace

ReadResult read_slots(const RowFormat& format, int64_t num_rows, FileRows rows, FileRows scales,
                      ScaleType stored, uint8_t* slots) {
  ReadResult result;
  const bool bytes = stored == ScaleType::e4m3;
  const int64_t per_row = bytes ? format.scale_bytes : format.scale_bytes / 4;
  const int64_t stored_bytes = per_row * (bytes ? 1 : (stored == ScaleType::bf16 ? 2 : 4));
  const int64_t step = std::max<int64_t>(1, std::min(num_rows, kPieceBytes / format.slot_bytes));
  const auto row_piece = std::make_unique<uint8_t[]>(step * format.row_bytes);
  const auto stored_piece = std::make_unique<uint8_t[]>(step * stored_bytes);
  const auto scale_piece = std::make_unique<uint8_t[]>(step * format.scale_bytes);
  for (int64_t row = 0; row < num_rows; row += step) {
    const int64_t count = std::min(step, num_rows - row);
    if (!read_all(rows, row * format.row_bytes, row_piece.get(), count * format.row_bytes, result)) {
      result.status = ReadResult::rows_failed;
      return result;
    }
    if (!read_all(scales, row * stored_bytes, stored_piece.get(), count * stored_bytes, result)) {
      result.status = ReadResult::scales_failed;
      return result;
    }
    const uint8_t* ready = stored_piece.get();
    if (!bytes) {
      widen(stored, count * per_row, stored_piece.get(), scale_piece.get());
      ready = scale_piece.get();
    }
    const int64_t bad = first_bad(stored, count * per_row, ready);
    if (bad >= 0) {
      result.status = ReadResult::bad_scale;
      result.at = row + bad / per_row;
      return result;
    }
    write_slots(format, count, row_piece.get(), ready, slots + row * format.slot_bytes);
  }
  return result;
}

}  // namespace ngram_ple::cpu
