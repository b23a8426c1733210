"""FLOPs by counting, time and memory by measuring."""
