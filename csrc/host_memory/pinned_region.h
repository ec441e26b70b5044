// A region of host memory that a GPU reads in place: mapped, touched, registered piece by piece.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "host_memory/mapping.h"
#include "host_memory/registrar.h"

namespace ngram_ple {

struct RegionOptions {
  // Some drivers fail to register hundreds of GiB at once.
  size_t piece_bytes = size_t{64} << 30;
  int threads = 0;         // that touch the memory; 0: as many as CPUs at hand
  bool check_room = true;  // off where memory grows with use, as in some virtual machines
  int file = -1;           // a memory file to map, which other processes may map too
  bool present = false;    // the file has all its pages already: it takes no more memory
  bool inherited = false;  // by forked children
};

class PinnedRegion {
 public:
  // Memory of `bytes`, zeroed or the file's, all of it or nothing: what was taken is given back on any
  // failure. Room is checked before anything is taken. Throws PinnedMemoryError.
  PinnedRegion(size_t bytes, std::unique_ptr<Registrar> registrar, const RegionOptions& options = {});
  ~PinnedRegion();
  PinnedRegion(const PinnedRegion&) = delete;
  PinnedRegion& operator=(const PinnedRegion&) = delete;

  // Null once closed.
  char* address() const { return mapping_ == nullptr ? nullptr : mapping_->address(); }
  size_t bytes() const { return bytes_; }
  size_t pieces() const { return pieces_.size(); }
  size_t huge_bytes() const { return mapping_ == nullptr ? 0 : mapping_->huge_bytes(); }

  // Waits for the GPU, unregisters and unmaps. In a forked child, which has no such memory, it only forgets.
  void close() noexcept;

 private:
  void check_lock_limit(size_t limit);
  void lock_pieces(size_t piece_bytes);
  void unlock_pieces() noexcept;

  size_t bytes_;
  std::unique_ptr<Registrar> registrar_;
  std::unique_ptr<Mapping> mapping_;
  std::vector<char*> pieces_;
  pid_t owner_;
};

}  // namespace ngram_ple
