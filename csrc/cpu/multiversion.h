// One binary for any x86-64: the compiler emits these functions once a level and the loader picks the best.
// Needs GCC 12, the first that knows the levels by name here, and a loader that calls the resolvers: glibc's
// (musl has none). Elsewhere there is one version, for the processor that the compiler targets.
#pragma once

#include <cstdlib>  // defines __GLIBC__ where glibc is

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(NGP_PORTABLE) && \
    defined(__GNUC__) && __GNUC__ >= 12
#define NGP_MULTIVERSION __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define NGP_MULTIVERSION
#endif
