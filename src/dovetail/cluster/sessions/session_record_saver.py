"""Store and renew the records of a worker's sessions in the background.

Records that could not be stored are stored as soon as the shared state is available. After a loss of data, all records
of the worker are stored again. Records of sessions in use are renewed.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, Final, TypeAlias

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import wait_before_retry
from dovetail.cluster.sessions.session_copies import SessionCopies, get_copy
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession

_MAX_SAVE_FAILURES: Final = 10
_BATCH_SIZE: Final = 50

# Uses the shared state for one session. Raises SharedStateUnavailable if the shared state is unavailable.
RecordOperation: TypeAlias = Callable[[HandshakeSession], Coroutine[Any, Any, None]]


class SessionRecordSaver:
    """Stores and renews records in the background.

    Args:
        copies: The sessions of this worker.
        tasks: The tasks of the endpoint.
        save: Stores the last change of a session.
        restore: Stores the record of a session again, after a loss of data.
        touch: Extends the life of a session.
        touch_interval: The seconds after which `touch_all` renews a record.
    """

    def __init__(
        self,
        copies: SessionCopies,
        tasks: BackgroundTasks,
        *,
        save: RecordOperation,
        restore: RecordOperation,
        touch: RecordOperation,
        touch_interval: float,
    ) -> None:
        self._copies = copies
        self._tasks = tasks
        self._save = save
        self._restore = restore
        self._touch = touch
        self._touch_interval = touch_interval
        self._unsaved: dict[HandshakeSession, None] = {}  # the sessions whose record could not be stored yet
        self._is_saving = self._is_touching = self._is_restoring = False
        self._must_restore = False  # True if data was lost after `_restore_in_batches` started its last round

    def save_later(self, session: HandshakeSession) -> None:
        """Store the record of a session in the background, as soon as the shared state is available."""
        self._unsaved[session] = None
        if not self._is_saving:
            self._is_saving = True
            self._tasks.start(self._save_unsaved())

    async def _save_unsaved(self) -> None:
        try:
            failed_rounds = 0
            while self._unsaved:
                await wait_before_retry(failed_rounds)
                failures = 0
                for session in tuple(self._unsaved):
                    if failures == _MAX_SAVE_FAILURES:
                        break
                    self._unsaved.pop(session, None)
                    try:
                        if session in self._copies:
                            await self._save(session)
                    except SharedStateUnavailable:
                        failures += 1
                        self._unsaved[session] = None  # Retry this session after all other sessions.
                failed_rounds = failed_rounds + 1 if failures else 0
        finally:
            self._is_saving = False

    def restore_all(self) -> None:
        """Store all records of this worker again."""
        self._must_restore = True
        if not self._is_restoring:
            self._is_restoring = True
            self._tasks.start(self._restore_in_batches())

    async def _restore_in_batches(self) -> None:
        """Store all records again. If data is lost during a round, run one more round."""
        try:
            while self._must_restore:
                self._must_restore = False
                await _run_in_batches(self._try_restore, self._copies)
        finally:
            self._is_restoring = False

    async def _try_restore(self, session: HandshakeSession) -> None:
        try:
            await self._restore(session)
        except SharedStateUnavailable:
            get_copy(session).is_unsaved = True
            self.save_later(session)

    def touch_all(self, sessions: Iterable[HandshakeSession]) -> None:
        """Renew the records of sessions that are in use, if the last renewal is too old."""
        now = time.time()
        old_copies = [
            session
            for session in sessions
            if not (record := get_copy(session).record).is_ended and now - record.touched_at > self._touch_interval
        ]
        if old_copies and not self._is_touching:
            self._is_touching = True
            self._tasks.start(self._touch_in_batches(old_copies))

    async def _touch_in_batches(self, sessions: list[HandshakeSession]) -> None:
        try:
            await _run_in_batches(self._try_touch, sessions)
        finally:
            self._is_touching = False

    async def _try_touch(self, session: HandshakeSession) -> None:
        with contextlib.suppress(SharedStateUnavailable, Refusal):
            await self._touch(session)


async def _run_in_batches(function: RecordOperation, sessions: Iterable[HandshakeSession]) -> None:
    """Call a function for each session. Run only a few calls at once, so that they do not delay requests."""
    remaining = iter(sessions)
    while batch := tuple(islice(remaining, _BATCH_SIZE)):
        await asyncio.gather(*map(function, batch))
