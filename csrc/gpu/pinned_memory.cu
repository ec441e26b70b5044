#include <cctype>

#include "gpu/host_runtime.h"
#include "gpu/pinned_memory.h"
#include "host_memory/system_files.h"

namespace ngram_ple::gpu {
namespace {

// Makes `device` the current one, and the thread free of the rules of a capture under way: none of what is
// done here belongs to a stream.
class Guard {
 public:
  explicit Guard(int device) {
    NGP_CALL(GetDevice, &before_);
    NGP_CALL(SetDevice, device);
    NGP_CALL(ThreadExchangeStreamCaptureMode, &mode_);
  }
  ~Guard() {
    (void)NGP_VENDOR(ThreadExchangeStreamCaptureMode)(&mode_);
    (void)NGP_VENDOR(SetDevice)(before_);
  }

 private:
  int before_ = 0;
  NGP_VENDOR(StreamCaptureMode) mode_ = NGP_VENDOR(StreamCaptureModeRelaxed);
};

class DeviceRegistrar final : public Registrar {
 public:
  explicit DeviceRegistrar(int device) : device_(device) {
    int count = 0;
    const auto error = NGP_VENDOR(GetDeviceCount)(&count);
    if (error != NGP_VENDOR(Success)) {
      throw PinnedMemoryError(std::string("pinned memory needs a GPU, got none: ") +
                              NGP_VENDOR(GetErrorString)(error));
    }
    if (device < 0 || device >= count) {
      throw PinnedMemoryError("device must be within 0.." + std::to_string(count - 1) + ", got " +
                              std::to_string(device));
    }
  }

  void lock(void* address, size_t bytes) override {
    const Guard guard(device_);
    const unsigned flags = NGP_VENDOR(HostRegisterPortable) | NGP_VENDOR(HostRegisterMapped);
    const auto error = NGP_VENDOR(HostRegister)(address, bytes, flags);
    if (error != NGP_VENDOR(Success)) {
      (void)NGP_VENDOR(GetLastError)();  // or the next launch reports it
      check_host_call(error, NGP_VENDOR_NAME(HostRegister));
    }
    // Kernels walk over pieces with one pointer, so each must lie at its host address.
    if (device_address(address, static_cast<int64_t>(bytes)) != address) {
      unlock(address);
      throw std::runtime_error("this GPU maps registered memory at another address than the host's");
    }
  }

  void unlock(void* address) noexcept override {
    try {
      const Guard guard(device_);
      (void)NGP_VENDOR(HostUnregister)(address);
      (void)NGP_VENDOR(GetLastError)();
    } catch (const std::runtime_error&) {  // the driver has gone before us
    }
  }

  void wait() noexcept override {
    try {
      const Guard guard(device_);
      (void)NGP_VENDOR(DeviceSynchronize)();
    } catch (const std::runtime_error&) {
    }
  }

  int memory_node() noexcept override {
    char bus_id[32] = {};
    if (NGP_VENDOR(DeviceGetPCIBusId)(bus_id, sizeof bus_id, device_) != NGP_VENDOR(Success)) return -1;
    std::string name(bus_id);
    for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    const std::string told = first_line("/sys/bus/pci/devices/" + name + "/numa_node");
    return static_cast<int>(leading_number(told).value_or(-1));
  }

 private:
  int device_;
};

// Null for pageable memory.
const void* device_address_of(const void* host) {
#if defined(__HIPCC__)
  hipPointerAttribute_t attributes{};
  if (hipPointerGetAttributes(&attributes, host) != hipSuccess) {
    (void)hipGetLastError();
    return nullptr;
  }
  return attributes.hostPointer != nullptr ? attributes.devicePointer : nullptr;
#else
  cudaPointerAttributes attributes{};
  NGP_CALL(PointerGetAttributes, &attributes, host);
  return attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged
             ? attributes.devicePointer
             : nullptr;
#endif
}

}  // namespace

std::unique_ptr<Registrar> make_registrar(int device) { return std::make_unique<DeviceRegistrar>(device); }

const void* device_address(const void* host, int64_t bytes) {
  const uint8_t* const last = static_cast<const uint8_t*>(host) + (bytes > 0 ? bytes - 1 : 0);
  const void* const begin = device_address_of(host);
  const void* const end = device_address_of(last);
  if (begin == nullptr || end == nullptr) return nullptr;
  return static_cast<const uint8_t*>(end) - static_cast<const uint8_t*>(begin) ==
                 last - static_cast<const uint8_t*>(host)
             ? begin
             : nullptr;
}

Stream new_stream(int device) {
  const Guard guard(device);
  NGP_VENDOR(Stream_t) stream = nullptr;
  int least = 0, greatest = 0;
  NGP_CALL(DeviceGetStreamPriorityRange, &least, &greatest);
  NGP_CALL(StreamCreateWithPriority, &stream, NGP_VENDOR(StreamNonBlocking), greatest);
  return stream;
}

uint64_t capture_id(Stream stream) {
  NGP_VENDOR(StreamCaptureStatus) status = NGP_VENDOR(StreamCaptureStatusNone);
  unsigned long long id = 0;
  NGP_CALL(StreamGetCaptureInfo, static_cast<NGP_VENDOR(Stream_t)>(stream), &status, &id);
  return status == NGP_VENDOR(StreamCaptureStatusNone) ? 0 : id;
}

}  // namespace ngram_ple::gpu
