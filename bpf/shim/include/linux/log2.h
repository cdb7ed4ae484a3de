/* SPDX-License-Identifier: GPL-2.0 */
#ifndef FLAMEHERD_SHIM_LOG2_H
#define FLAMEHERD_SHIM_LOG2_H
#include <linux/types.h>
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)
#define __always_inline inline __attribute__((always_inline))
#define roundup_pow_of_two(n) (1UL << (64 - __builtin_clzl((n)-1)))
#endif
