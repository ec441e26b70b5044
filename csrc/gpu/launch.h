// The GPU kernels as the rest of the house sees them: raw device pointers and a stream, no torch, no vendor.
//
// Every pointer inside the structs is a device pointer (pinned host memory through its device address
// included), read when the kernel runs: nothing is synchronised, copied or allocated. Empty work launches
// nothing. A failed launch throws std::runtime_error that names the operator and the device error. The
// current device must be the stream's.
#pragma once

#include <cstdint>

#include "core/int_array.h"
#include "core/ngram_batch.h"
#include "core/row_format.h"
#include "core/table_blocks.h"

namespace ngram_ple::gpu {

using Stream = void*;  // cudaStream_t or hipStream_t

// out [T, H]: the row number of every head's n-gram that ends in each token.
void ngram_ids(const NgramBatch& batch, int64_t* out, Stream stream);

// out [num_ids, out_row_bytes]: the decoded row of every id, zeros where the table does not own it. `sms` > 0
// leaves all but so many multiprocessors to other work, on CUDA.
void lookup(const IntArray& ids, int64_t num_ids, const TableView& table, OutType out_type, uint8_t* out,
            Stream stream, int sms = 0);

// out [T, H * out_row_bytes]: ngram_ids and lookup in one kernel, no ids written.
void embed(const NgramBatch& batch, const TableView& table, OutType out_type, uint8_t* out, Stream stream);

// The same two over a table that lies in blocks; `table` describes one of them, row_start and row_end the
// whole.
void lookup_peers(const IntArray& ids, int64_t num_ids, const TableView& table, const TableBlocks& blocks,
                  OutType out_type, uint8_t* out, Stream stream);
void embed_peers(const NgramBatch& batch, const TableView& table, const TableBlocks& blocks, OutType out_type,
                 uint8_t* out, Stream stream);

// out [num_rows, out_row_bytes]: row i of the view, decoded.
void decode(const TableView& rows, int64_t num_rows, OutType out_type, uint8_t* out, Stream stream);

// out [num_rows]: the largest magnitude of every row of head_dim values, infinite or NaN where a value is
// (unless `finite_only`, which leaves those out).
void row_amax(Format from, const uint8_t* values, int64_t num_rows, int64_t head_dim, bool finite_only,
              float* out, Stream stream);

// Contiguous rows, and where they go as `to` stores them: what cpu::encode does.
struct EncodeView {
  Format from;  // bf16, fp16 or fp32
  RowFormat to;
  const uint8_t* values;
  uint8_t* rows;
  uint8_t* scales;
  const float* global_scale;  // one value, null when the format has none
  bool scale_is_bf16;         // of fp8-rowwise scales
};
void encode(const EncodeView& view, int64_t num_rows, Stream stream);

}  // namespace ngram_ple::gpu
