"""One pool of gloo ranks for the whole test session: a rank's process starts in seconds, a case on it in milliseconds."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

RANKS = 4
TIMEOUT = 120.0  # seconds a case may take


class CaseError(AssertionError):
    """A rank raised; carries that rank's traceback."""


class Pool:
    """``run`` calls a function on the first ``n`` ranks, each with a ``Parallel`` of its own."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._ranks: list[tuple[Any, Connection]] = []

    def run(self, function: Callable[..., Any], spec: str, n: int, *args: Any, **options: Any) -> list[Any]:
        """Every rank's value of ``function(p, *args)``, in rank order.

        Args:
            function: a module-level function of a test module.
            options: fields of :class:`parallel.launcher.Options`, such as ``precision="fp64"``.
        """
        try:
            return self._answers(function, spec, n, args, options)
        except CaseError:
            raise
        except (
            BaseException
        ):  # as when the test's time is up: an answer that is to come is not the next case's
            self.close()
            raise

    def _answers(
        self, function: Callable[..., Any], spec: str, n: int, args: tuple[Any, ...], options: dict[str, Any]
    ) -> list[Any]:
        self._start(n)
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(n):
                self._ranks[rank][1].send(list(sys.path))
                self._ranks[rank][1].send((function, spec, n, rank, folder, args, options))
            pending = {self._ranks[rank][1]: rank for rank in range(n)}
            values: dict[int, Any] = {}
            failure = ""
            while pending:
                # Once a rank has failed its peers either fail too, as on a refusal, or wait for it in a
                # collective.
                ready = wait(list(pending), 5.0 if failure else TIMEOUT)
                if not ready:
                    stuck = sorted(pending.values())
                    self.close()
                    raise CaseError(failure or f"no answer from ranks {stuck} within {TIMEOUT} s")
                for connection in ready:
                    rank = pending.pop(connection)  # type: ignore[index]
                    try:
                        good, values[rank] = connection.recv()  # type: ignore[union-attr]
                    except EOFError:
                        self.close()
                        raise CaseError(
                            failure or f"rank {rank} of {n} under {spec}: its process died"
                        ) from None
                    if not good:
                        failure = failure or f"rank {rank} of {n} under {spec}:\n{values[rank]}"
            if failure:
                raise CaseError(failure)
        return [values[rank] for rank in range(n)]

    def close(self) -> None:
        for _, connection in self._ranks:
            connection.close()
        for process, _ in self._ranks:
            process.join(2.0)  # one that answers leaves by itself, and takes its temporary files along
            process.terminate()
            process.join()
        self._ranks.clear()

    def _start(self, n: int) -> None:
        if self._ranks:
            return
        kept = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")}
        os.environ["OMP_NUM_THREADS"] = "1"
        if sys.platform == "linux":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        try:
            for _ in range(RANKS):
                ours, theirs = self._context.Pipe()
                process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                self._ranks.append((process, ours))
        finally:
            for name, value in kept.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _serve(connection: Connection) -> None:
    import parallel.setup
    import parallel.testing

    assert parallel.setup and parallel.testing  # with it, nearly all that a case needs of torch is there
    while True:
        gc.freeze()  # what a strategy collects when it is closed is then little to look through
        try:
            sys.path[:] = connection.recv()  # first, since the request names functions of test modules
            request = connection.recv()
        except EOFError:
            return
        connection.send(_answer(request))


def _answer(request: Any) -> tuple[bool, Any]:
    """Whether the case came to its end, and its value or the traceback."""
    from parallel.launcher import Options, Place
    from parallel.setup import create

    function, spec, n, rank, folder, args, options = request
    try:
        address = f"file:{folder}" if n > 1 else ""
        p = create(spec, Options(**options), Place(rank, n, rank, address, 0, "launch"))
        try:
            value = function(p, *args)
            p.barrier()  # as launch does
            return True, value
        finally:
            p.close()
    except BaseException:
        return False, traceback.format_exc()
