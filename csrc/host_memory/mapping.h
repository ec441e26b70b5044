// Memory of exact size, the process's own or a file's that others map too: huge pages asked for, on a chosen
// memory node, touched by many threads.
#pragma once

#include <cstddef>

namespace ngram_ple {

class Mapping {
 public:
  // Whole pages for `bytes`, aligned for huge pages, nothing behind them yet; of the memory file `file` where
  // one is given, which must be as large and stay open until `touch` is done. A forked child inherits them
  // only where asked to: copying locked pages at every fork would double the table. Throws PinnedMemoryError.
  explicit Mapping(size_t bytes, int file = -1, bool inherited = false);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* address() const { return address_; }
  size_t bytes() const { return bytes_; }

  // Where the machine has several memory nodes, takes pages from this one while it has any. MPOL_PREFERRED,
  // as a table that outgrows its node should get slower, not have its process killed.
  void prefer_node(int node) const;

  // Puts pages behind all of it: zeroed ones, or the file's. Throws PinnedMemoryError when the system has
  // none left.
  void touch(int threads) const;

  // Bytes that lie in transparent huge pages (AnonHugePages and ShmemPmdMapped of /proc/self/smaps).
  size_t huge_bytes() const;

  void unmap() noexcept;

 private:
  void map_file(size_t bytes);

  char* address_ = nullptr;
  size_t bytes_ = 0;
  int file_;
};

// CPUs that this process may run on.
int usable_cpus();

}  // namespace ngram_ple
