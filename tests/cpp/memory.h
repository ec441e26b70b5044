// Memory that shows every access outside it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>

namespace testing_memory {

// Exactly `size` bytes on the heap, `shift` bytes past an aligned address: AddressSanitizer sees any read or
// write past the end, and one before the start when shift is 0.
class ExactBytes {
 public:
  explicit ExactBytes(size_t size, size_t shift = 0)
      : size_(size), shift_(shift), data_(new uint8_t[size + shift]()) {}
  uint8_t* data() { return data_.get() + shift_; }
  const uint8_t* data() const { return data_.get() + shift_; }
  size_t size() const { return size_; }
  void fill_random(std::mt19937_64& random) {
    for (size_t i = 0; i < size_; ++i) data()[i] = static_cast<uint8_t>(random());
  }

 private:
  size_t size_, shift_;
  std::unique_ptr<uint8_t[]> data_;
};

// `size` bytes between two stretches of a pattern, for builds without a sanitizer.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size) : size_(size), data_(new uint8_t[size + 2 * kGuard]) {
    std::memset(data_.get(), kPattern, size + 2 * kGuard);
  }
  uint8_t* data() { return data_.get() + kGuard; }
  size_t size() const { return size_; }
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (data_[i] != kPattern || data_[kGuard + size_ + i] != kPattern) return false;
    }
    return true;
  }
  static constexpr uint8_t kPattern = 0xC7;

 private:
  static constexpr size_t kGuard = 128;
  size_t size_;
  std::unique_ptr<uint8_t[]> data_;
};

}  // namespace testing_memory
