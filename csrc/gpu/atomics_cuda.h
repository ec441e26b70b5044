// atomics.h on CUDA.
#pragma once

#include "gpu/runtime.h"

namespace ngram_ple::gpu {

NGP_DEVICE uint32_t fetch_add(uint32_t* word, uint32_t value) { return atomicAdd(word, value); }
NGP_DEVICE uint64_t fetch_add(uint64_t* word, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
}
NGP_DEVICE uint64_t compare_and_swap(uint64_t* word, uint64_t expected, uint64_t value) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(value));
}
template <class T>
NGP_DEVICE T load_shared_word(const T* word) {
  return *static_cast<const volatile T*>(word);
}
template <class T>
NGP_DEVICE void store_shared_word(T* word, T value) {
  *static_cast<volatile T*>(word) = value;
}
NGP_DEVICE void fence_device() { __threadfence(); }
NGP_DEVICE void fence_host() { __threadfence_system(); }
NGP_DEVICE void sync_block() { __syncthreads(); }

NGP_DEVICE uint32_t load_acquire_host(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
template <class T>
NGP_DEVICE void store_to_host(T* word, T value) {
  *static_cast<volatile T*>(word) = value;
}
template <class T>
NGP_DEVICE T load_fresh(const uint8_t* from) {
  T value;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
                 : "l"(from)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.word[0]), "=r"(value.word[1])
                 : "l"(from)
                 : "memory");
  } else {
    value = *reinterpret_cast<const volatile T*>(from);
  }
  return value;
}

NGP_DEVICE uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
NGP_DEVICE void pause_briefly() { __nanosleep(200); }

}  // namespace ngram_ple::gpu
