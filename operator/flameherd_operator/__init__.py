"""Turns the policies of a cluster into agents on its nodes, and tells what became of them."""
