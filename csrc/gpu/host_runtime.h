// The vendors' host side: runtime.h has the device's. Their calls differ in the prefix of a name, with few
// exceptions: NGP_VENDOR(StreamSynchronize) is the function, NGP_CALL(StreamSynchronize, ...) calls it and
// throws std::runtime_error that names it.
#pragma once

#include "gpu/runtime.h"

#if !defined(NGRAM_PLE_EMULATOR)
#if defined(__HIPCC__)
#define NGP_VENDOR(name) hip##name
#define NGP_VENDOR_NAME(name) "hip" #name
#else
#define NGP_VENDOR(name) cuda##name
#define NGP_VENDOR_NAME(name) "cuda" #name
#endif
#define NGP_CALL(name, ...) \
  ::ngram_ple::gpu::check_host_call(NGP_VENDOR(name)(__VA_ARGS__), NGP_VENDOR_NAME(name))
#endif

namespace ngram_ple::gpu {

#if defined(NGRAM_PLE_EMULATOR)
inline bool is_capturing(Stream) { return false; }
inline void synchronize(Stream) {}
template <class T>
T* new_pinned() {
  return new T{};
}
#else
inline void check_host_call(NGP_VENDOR(Error_t) error, const char* call) {
  if (error != NGP_VENDOR(Success)) {
    throw std::runtime_error(std::string(call) + ": " + NGP_VENDOR(GetErrorString)(error));
  }
}

inline bool is_capturing(Stream stream) {
  NGP_VENDOR(StreamCaptureStatus) status = NGP_VENDOR(StreamCaptureStatusNone);
  NGP_CALL(StreamIsCapturing, static_cast<NGP_VENDOR(Stream_t)>(stream), &status);
  return status != NGP_VENDOR(StreamCaptureStatusNone);
}

inline void synchronize(Stream stream) {
  NGP_CALL(StreamSynchronize, static_cast<NGP_VENDOR(Stream_t)>(stream));
}

// Host memory that every GPU reads and writes at its host address. Allowed while a stream of this thread is
// captured.
inline void* allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  NGP_VENDOR(StreamCaptureMode) mode = NGP_VENDOR(StreamCaptureModeRelaxed);
  NGP_CALL(ThreadExchangeStreamCaptureMode, &mode);
#if defined(__HIPCC__)
  const hipError_t error = hipHostMalloc(&memory, bytes, hipHostMallocPortable | hipHostMallocMapped);
#else
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
#endif
  NGP_CALL(ThreadExchangeStreamCaptureMode, &mode);
  check_host_call(error, "the allocation of pinned memory");
  return memory;
}
inline void free_pinned(void* memory) {
#if defined(__HIPCC__)
  (void)hipHostFree(memory);
#else
  (void)cudaFreeHost(memory);
#endif
}
template <class T>
T* new_pinned() {
  return new (allocate_pinned(sizeof(T))) T{};
}
#endif

}  // namespace ngram_ple::gpu
