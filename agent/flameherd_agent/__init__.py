"""The agent: samples a node with eBPF, unwinds in the kernel, names, labels and exports profiles."""

__version__ = "0.1.0"
