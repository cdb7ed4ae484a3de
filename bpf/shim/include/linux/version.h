/* SPDX-License-Identifier: GPL-2.0 */
/* The programs do not depend on the kernel's version: layouts come from its BTF. */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
