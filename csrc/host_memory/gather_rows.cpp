#include "host_memory/gather_rows.h"

#include <algorithm>
#include <cstring>

namespace ngram_ple {
namespace {

constexpr int64_t kRowsAhead = 16;
constexpr int64_t kCacheLine = 64;

// The list of a batch that is over may change under a worker that is late: any row will do then.
const uint8_t* row_at(const GatherPart& part, int64_t i) {
  return part.table + __atomic_load_n(part.rows + i, __ATOMIC_RELAXED) * part.row_bytes;
}

void ask_for(const GatherPart& part, int64_t i) {
  const uint8_t* const row = row_at(part, i);
  const uint8_t* const last = row + part.row_bytes - 1;
  for (const uint8_t* line = row; line < last; line += kCacheLine) __builtin_prefetch(line, 0, 3);
  __builtin_prefetch(last, 0, 3);
}

}  // namespace

void ask_for_first_rows(const GatherPart& part) {
  const int64_t end = std::min(part.begin + kRowsAhead, part.asked_end);
  for (int64_t i = part.begin; i < end; ++i) ask_for(part, i);
}

// Copies stay in the caches, where they replace those of the batch before: the GPU reads them from there.
void gather_rows(const GatherPart& part) {
  uint8_t* to = part.to;
  for (int64_t i = part.begin; i < part.end; ++i, to += part.stride) {
    if (i + kRowsAhead < part.asked_end) ask_for(part, i + kRowsAhead);
    std::memcpy(to, row_at(part, i), static_cast<size_t>(part.row_bytes));
  }
}

}  // namespace ngram_ple
