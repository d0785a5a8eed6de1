"""Offline batches: OpenAI's Batch JSONL in and out, resumable, nothing lost.

An input is checked whole and then read again, window by window. Finished requests are appended to
a partial output beside the final one, which gets its name when all are there. A journal says which
input and which model that output belongs to. Memory does not grow with the input, but for a few
bytes per line.
"""
