"""The rank runtime: one launcher per (gang, node), started inside the task; see docs/reference/launcher-protocol.md.

It runs under the job's own interpreter (Python 3.8 or later) with the standard library only, imports nothing else of
ganger but `ganger.train`, and starts fast: no asyncio, dataclasses, pathlib or typing at run time. The server builds it
with `build_archive`.
"""
