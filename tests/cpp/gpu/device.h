// Device memory for the kernel tests. Which device is the build's choice: device_gpu.cu for a GPU,
// device_emulator.cpp for the SIMT emulator, where it is plain memory of the exact size under
// AddressSanitizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace ngram_ple::test {

enum class Placement { device, pinned };  // pinned host memory is read through the bus

void* allocate(size_t bytes, Placement placement);
void release(void* memory, Placement placement);
void copy_to_device(void* to, const void* from, size_t bytes);
void copy_to_host(void* to, const void* from, size_t bytes);  // waits for the kernels before it

// `bytes` bytes of device memory that start `offset` bytes past an allocation's alignment.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes, size_t offset = 0, Placement placement = Placement::device)
      : memory_(allocate(bytes + offset, placement)), bytes_(bytes), offset_(offset), placement_(placement) {}
  template <class T>
  explicit DeviceBuffer(const std::vector<T>& values, size_t offset = 0,
                        Placement placement = Placement::device)
      : DeviceBuffer(values.size() * sizeof(T), offset, placement) {
    copy_to_device(data(), values.data(), bytes_);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { release(memory_, placement_); }

  uint8_t* data() const { return static_cast<uint8_t*>(memory_) + offset_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  template <class T>
  std::vector<T> download() const {
    std::vector<T> values(bytes_ / sizeof(T));
    copy_to_host(values.data(), data(), bytes_);
    return values;
  }

 private:
  void* memory_;
  size_t bytes_, offset_;
  Placement placement_;
};

// An output between two guard zones, all of it poisoned. take() checks the guards and returns what is
// between.
class GuardedOutput {
 public:
  explicit GuardedOutput(size_t bytes, size_t offset = 0)
      : bytes_(bytes), buffer_(std::vector<uint8_t>(bytes + 2 * kGuard, kPoison), offset) {}

  uint8_t* data() const { return buffer_.data() + kGuard; }
  bool guards_intact() const {
    const auto all = buffer_.download<uint8_t>();
    for (size_t i = 0; i < kGuard; ++i) {
      if (all[i] != kPoison || all[kGuard + bytes_ + i] != kPoison) return false;
    }
    return true;
  }
  std::vector<uint8_t> take() const {
    const auto all = buffer_.download<uint8_t>();
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kPoison = 0xA5;
  size_t bytes_;
  DeviceBuffer buffer_;
};

}  // namespace ngram_ple::test
