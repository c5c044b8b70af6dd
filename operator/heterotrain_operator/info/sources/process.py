"""Runs a program with a bound on its output; it is killed with the caller's deadline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from heterotrain_operator.info.sources.base import Reason, SourceError

MAX_OUTPUT_BYTES: Final = 4 * 2**20


async def output_of(argv: Sequence[str], most: int = MAX_OUTPUT_BYTES) -> bytes:
    """What the program writes to its standard output; raises `SourceError` unless it exits with 0. No shell."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except (OSError, ValueError) as error:
        raise SourceError(Reason.COMMAND, f"{argv[0]} cannot be run: {error}") from error
    try:
        return await _read(process, argv[0], most)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read(process: asyncio.subprocess.Process, name: str, most: int) -> bytes:
    if process.stdout is None:
        raise TypeError("standard output is not piped")
    chunks, size = [], 0
    while chunk := await process.stdout.read(65536):
        size += len(chunk)
        if size > most:
            raise SourceError(Reason.TOO_LARGE, f"{name} writes more than {most} bytes")
        chunks.append(chunk)
    code = await process.wait()
    if code != 0:
        raise SourceError(Reason.COMMAND, f"{name} exits with {code}")
    return b"".join(chunks)
