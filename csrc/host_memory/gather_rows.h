// Copies rows that lie anywhere in a table side by side, at the rate of memory rather than of its latency.
#pragma once

#include <cstdint>

namespace ngram_ple {

struct GatherPart {
  const uint8_t* table;
  int64_t row_bytes;     // of the table
  int64_t stride;        // of the copies, at least row_bytes
  const uint32_t* rows;  // numbers, `begin` and on wanted now
  int64_t begin, end;
  int64_t asked_end;  // the caller goes on up to here: rows before it are asked of memory already
  uint8_t* to;        // where row `begin` goes
};

void gather_rows(const GatherPart& part);

// Asks memory for the first rows of a part that comes next.
void ask_for_first_rows(const GatherPart& part);

}  // namespace ngram_ple
