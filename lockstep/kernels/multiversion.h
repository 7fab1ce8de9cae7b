// One binary for every x86-64: functions marked LOCKSTEP_MULTIVERSION are compiled for AVX-512, AVX2 + FMA and the
// baseline, and the loader picks. Mark plain functions (not templates) that call LOCKSTEP_INLINE templates.
#pragma once

// Sanitizers instrument the resolvers, which run before the sanitizer does; they get the baseline.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(LOCKSTEP_SANITIZED)
#define LOCKSTEP_MULTIVERSION __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define LOCKSTEP_MULTIVERSION
#endif

#define LOCKSTEP_INLINE __attribute__((always_inline)) inline
