// Anonymous memory of exact size: huge pages asked for, on a chosen memory node, touched by many threads.
#pragma once

#include <cstddef>

namespace ngram_ple {

class Mapping {
 public:
  // Whole pages for `bytes`, aligned for huge pages, nothing behind them yet. A forked child does not inherit
  // them: copying locked pages at every fork would double the table. Throws PinnedMemoryError.
  explicit Mapping(size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* address() const { return address_; }
  size_t bytes() const { return bytes_; }

  // Where the machine has several memory nodes, takes pages from this one while it has any. MPOL_PREFERRED,
  // as a table that outgrows its node should get slower, not have its process killed.
  void prefer_node(int node) const;

  // Puts zeroed pages behind all of it. Throws PinnedMemoryError when the system has none left.
  void touch(int threads) const;

  // Bytes that lie in transparent huge pages (AnonHugePages of /proc/self/smaps).
  size_t huge_bytes() const;

  void unmap() noexcept;

 private:
  char* address_ = nullptr;
  size_t bytes_ = 0;
};

// CPUs that this process may run on.
int usable_cpus();

}  // namespace ngram_ple
