// What a pinned region asks of a GPU's driver. csrc/gpu/pinned_memory.cu has the real one.
#pragma once

#include <cstddef>
#include <stdexcept>

namespace ngram_ple {

// Pinned host memory could not be had: what was needed, what there is.
class PinnedMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Registrar {
 public:
  virtual ~Registrar() = default;

  // Locks whole pages and lets the GPU read them at their host address. Throws std::runtime_error.
  virtual void lock(void* address, size_t bytes) = 0;
  virtual void unlock(void* address) noexcept = 0;

  // Waits until the GPU has finished with everything that may read locked memory.
  virtual void wait() noexcept = 0;

  // The memory node closest to the GPU, negative when unknown.
  virtual int memory_node() noexcept = 0;
};

// For memory that the CPU alone reads.
class NoRegistrar final : public Registrar {
 public:
  void lock(void*, size_t) override {}
  void unlock(void*) noexcept override {}
  void wait() noexcept override {}
  int memory_node() noexcept override { return -1; }
};

}  // namespace ngram_ple
