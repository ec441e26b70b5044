// One binary for any x86-64: the compiler emits these functions once a level and the loader picks the best.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(NGP_PORTABLE)
#define NGP_MULTIVERSION __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define NGP_MULTIVERSION
#endif
