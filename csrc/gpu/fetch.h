// Brings the listed rows of a table in host memory to the device.
#pragma once

#include "core/table_view.h"
#include "gpu/distinct.h"

namespace ngram_ple::gpu {

struct FetchOptions {
  int blocks;         // of 1024 threads, each on a multiprocessor of its own
  int direct_waves;   // of each block's: they read the table, the others wait for the workers
  uint32_t patience;  // ns that a wave waits for a chunk before it reads the table
};

// Copies every row in `space.list` to its place in `space.rows`: with the workers' help when the batch is
// `staged`, else all of them where the table has them. Rows of a batch in which a worker failed become NaN in
// every format (bytes 0xFF). A chunk that the workers do not bring in time is read from the table: the GPU
// never waits long.
void fetch_rows(const TableView& table, const DistinctSpace& space, const Staging& staging, bool staged,
                const FetchOptions& options, Stream stream);

}  // namespace ngram_ple::gpu
