// The vendors' host side: streams and pinned words. runtime.h has the device's.
#pragma once

#include "gpu/runtime.h"

namespace ngram_ple::gpu {

#if defined(NGRAM_PLE_EMULATOR)
inline bool is_capturing(Stream) { return false; }
inline void synchronize(Stream) {}
template <class T>
T* new_pinned() {
  return new T{};
}
#elif defined(__HIPCC__)
inline void check_host_call(hipError_t error, const char* call) {
  if (error != hipSuccess) throw std::runtime_error(std::string(call) + ": " + hipGetErrorString(error));
}
inline bool is_capturing(Stream stream) {
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  check_host_call(hipStreamIsCapturing(static_cast<hipStream_t>(stream), &status), "hipStreamIsCapturing");
  return status != hipStreamCaptureStatusNone;
}
inline void synchronize(Stream stream) {
  check_host_call(hipStreamSynchronize(static_cast<hipStream_t>(stream)), "hipStreamSynchronize");
}
// A value in pinned host memory that every GPU reads and writes at its host address.
template <class T>
T* new_pinned() {
  void* memory = nullptr;
  hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
  check_host_call(hipThreadExchangeStreamCaptureMode(&mode), "hipThreadExchangeStreamCaptureMode");
  const hipError_t error = hipHostMalloc(&memory, sizeof(T), hipHostMallocPortable | hipHostMallocMapped);
  check_host_call(hipThreadExchangeStreamCaptureMode(&mode), "hipThreadExchangeStreamCaptureMode");
  check_host_call(error, "hipHostMalloc");
  return new (memory) T{};
}
#else
inline void check_host_call(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}
inline bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_host_call(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}
inline void synchronize(Stream stream) {
  check_host_call(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}
// A value in pinned host memory that every GPU reads and writes at its host address. Allowed while a stream
// of this thread is captured.
template <class T>
T* new_pinned() {
  void* memory = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_host_call(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  const cudaError_t error = cudaHostAlloc(&memory, sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped);
  check_host_call(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  check_host_call(error, "cudaHostAlloc");
  return new (memory) T{};
}
#endif

}  // namespace ngram_ple::gpu
