"""Runtimes whose functions are not native code: how their frames are found, read and named.

Each is a plug-in: an eBPF program of its own (`bpf/interpreters`), layouts as data (`layouts/`), and a package here
that exports one `Interpreter` record, listed in `registry.py`.
"""
