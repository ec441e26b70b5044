#include "cpu/write_slots.h"

#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ngram_ple::cpu {
namespace {

constexpr int64_t kChunk = 16;

// Stores that go around the cache: a table is written once and read much later, and a line that is written
// whole need not be fetched first. `to` is aligned to kChunk.
void stream(uint8_t* to, const void* from) {
#if defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
  std::memcpy(to, from, kChunk);
#endif
}

void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

void write_slot(const RowFormat& format, const uint8_t* row, const uint8_t* scale, uint8_t* slot) {
  const int64_t end = format.scale_offset + format.scale_bytes;
  std::memcpy(slot, row, format.row_bytes);
  std::memset(slot + format.row_bytes, 0, format.scale_offset - format.row_bytes);
  std::memcpy(slot + format.scale_offset, scale, format.scale_bytes);
  std::memset(slot + end, 0, format.slot_bytes - end);
}

// Sixteen bytes at a time where the row is made of such and its scales fit one more. Reads up to 15 bytes
// past a row's scales. kChunks is the row's number of chunks, or 0: known at run time only.
template <int64_t kChunks>
void write_chunks(const RowFormat& format, int64_t num_rows, const uint8_t* rows, const uint8_t* scales,
                  uint8_t* slots) {
  // Copies: for all that the compiler knows, the bytes written below could be those of `format`.
  const int64_t chunks = kChunks ? kChunks : format.row_bytes / kChunk, scale_bytes = format.scale_bytes;
  uint8_t bytes[kChunk] = {};
  std::memset(bytes, 0xFF, scale_bytes);
  uint64_t mask[2], tail[2];
  std::memcpy(mask, bytes, kChunk);
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk, rows += kChunk, slots += kChunk) {
      stream(slots, rows);
    }
    std::memcpy(tail, scales, kChunk);
    tail[0] &= mask[0];
    tail[1] &= mask[1];
    stream(slots, tail);
    scales += scale_bytes;
    slots += kChunk;
  }
  finish_streaming();
}

}  // namespace

void write_slots(const RowFormat& format, int64_t num_rows, const uint8_t* rows, const uint8_t* scales,
                 uint8_t* slots) {
  int64_t done = 0;
  if (reinterpret_cast<uintptr_t>(slots) % kChunk == 0 && format.row_bytes % kChunk == 0 &&
      format.scale_offset == format.row_bytes && format.slot_bytes == format.row_bytes + kChunk) {
    const int64_t last = kChunk / format.scale_bytes + 1;  // rows whose chunk would end past all scales
    done = num_rows > last ? num_rows - last : 0;
    // The published head_dim, 160, in nvfp4 and fp8-rowwise.
    const auto write = format.row_bytes == 5 * kChunk    ? write_chunks<5>
                       : format.row_bytes == 10 * kChunk ? write_chunks<10>
                                                         : write_chunks<0>;
    write(format, done, rows, scales, slots);
  }
  for (int64_t i = done; i < num_rows; ++i) {
    write_slot(format, rows + i * format.row_bytes, scales + i * format.scale_bytes,
               slots + i * format.slot_bytes);
  }
}

}  // namespace ngram_ple::cpu
