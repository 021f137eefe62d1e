"""The rank runtime: one launcher for each (gang, node), started inside the task; see
docs/reference/launcher-protocol.md.

Runs under the job's own interpreter (Python 3.8 or later) with the standard library only, imports nothing else of
ganger, and starts fast: no asyncio, dataclasses, pathlib or typing at run time. `archive` is the server's side of it.
"""
