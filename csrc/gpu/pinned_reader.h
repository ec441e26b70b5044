// Lookups in a table that lies in pinned host memory: three ways, the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/bring.h"
#include "gpu/distinct.h"
#include "gpu/fetch.h"
#include "gpu/stream_order.h"
#include "host_memory/row_stager.h"

namespace ngram_ple::gpu {

enum class Way : uint8_t {
  zero_copy,  // the lookup kernel reads each row where the table has it
  ordered,    // the same for distinct rows, in the order of their addresses
  staged,     // workers of the host gather rows into a staging area, and the GPU helps
};

// Staged batches of up to so many ids are listed as they are: finding distinct rows would take longer than
// reading some of them twice.
inline constexpr int64_t kListedWhole = 6144;

struct ReaderCounters {
  BatchTotals batches{};                            // of the ways that list rows first
  uint64_t zero_copy_calls = 0, zero_copy_ids = 0;  // as they were launched or captured
  StagerCounters stager;
};

struct ReaderOptions {
  int64_t max_ids = 131072;  // of a batch in one go; larger ones go in parts
  int threads = 1;           // that gather rows; without any there is no staged way
  RowStager::Gather gather = &gather_rows;
  uint32_t patience = 0;  // ns that the GPU waits for a chunk of rows; 0: by the size of the batch
};

class PinnedReader {
 public:
  // Memory of one reader.
  static int64_t device_bytes(const RowFormat& format, const ReaderOptions& options);
  static int64_t pinned_bytes(const RowFormat& format, const ReaderOptions& options);

  // `table` is in pinned memory that the device addresses as the host does. Both memories must outlive the
  // reader; `device_memory` may still be in use by earlier work of `stream`. Throws std::system_error,
  // std::runtime_error.
  PinnedReader(const TableView& table, const ReaderOptions& options, uint8_t* device_memory,
               uint8_t* pinned_memory, Stream stream);
  // Nothing of it may be under way on the device.
  ~PinnedReader();

  // As gpu::lookup; `table` says how to decode and must be the reader's own. `sms` > 0 limits the kernels
  // that read rows to so many multiprocessors. `capture` is the capture that `stream` is part of, or 0.
  // Throws std::runtime_error also when a worker has failed since the last call: that lookup's rows are NaN.
  void lookup(const IntArray& ids, int64_t num_ids, const TableView& table, OutType out_type, uint8_t* out,
              Way way, int sms, Stream stream, uint64_t capture);

  // Finds the distinct rows among ids [num_ids], num_ids <= max_ids, on `stream`, and has workers and copies
  // bring them to `rows` [num_ids, stride of 16 bytes] on `side`, which goes on after `stream` and takes no
  // multiprocessor until the rows are there. `places` [num_ids]: for each id the place of its row, -1 without
  // one. Throws as lookup() does.
  void bring(const IntArray& ids, int64_t num_ids, int32_t* places, uint8_t* rows, Stream stream, Stream side,
             uint64_t capture);

  ReaderCounters counters();
  int64_t max_ids() const { return options_.max_ids; }

 private:
  struct Workspace {
    DistinctSpace space;
    Staging staging;
    LastUse last_use;
    HostBranch branch;
    Handover handover;
    PieceCalls calls{};
  };
  void check_workers();
  static void call_workers(void* stager);
  static void call_for_few(void* data);
  void look_up_part(Workspace& workspace, const IntArray& ids, int64_t num_ids, const TableView& table,
                    OutType out_type, uint8_t* out, bool staged, int sms, Stream stream);

  TableView table_;
  ReaderOptions options_;
  std::mutex mutex_;  // of the order of calls and the counts below
  // for work that runs and for work that is captured, which may be replayed at any time
  std::array<Workspace, 2> workspaces_;
  std::unique_ptr<RowStager> stager_;
  uint64_t zero_copy_calls_ = 0, zero_copy_ids_ = 0;
};

}  // namespace ngram_ple::gpu
