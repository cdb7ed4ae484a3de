/* SPDX-License-Identifier: GPL-2.0 */
/* bcc asks for the kernel's headers; this folder holds the few definitions that its own headers need. */
#define CONFIG_BPF_SYSCALL 1
