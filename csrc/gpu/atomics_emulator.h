// atomics.h on the SIMT emulator. The host's threads are real ones there.
#pragma once

#include <chrono>
#include <thread>

#include "gpu/runtime.h"

namespace ngram_ple::gpu {

template <class T>
NGP_DEVICE T fetch_add(T* word, T value) {
  return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}
NGP_DEVICE uint64_t compare_and_swap(uint64_t* word, uint64_t expected, uint64_t value) {
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T>
NGP_DEVICE T load_shared_word(const T* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
template <class T>
NGP_DEVICE void store_shared_word(T* word, T value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
NGP_DEVICE void fence_device() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
NGP_DEVICE void fence_host() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
NGP_DEVICE void sync_block() { simt::sync_block(); }

NGP_DEVICE uint32_t load_acquire_host(const uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
template <class T>
NGP_DEVICE void store_to_host(T* word, T value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
template <class T>
NGP_DEVICE T load_fresh(const uint8_t* from) {
  return simt::load<T>(from);
}

NGP_DEVICE uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}
NGP_DEVICE void pause_briefly() { std::this_thread::yield(); }

}  // namespace ngram_ple::gpu
