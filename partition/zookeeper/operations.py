"""A write's operations as kazoo's transaction, and what its results mean."""

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotReadOnlyCallError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError

from partition.errors import StoreError
from partition.offsets.requests import (
    CreateEphemeral,
    CreateNode,
    DeleteNode,
    NodeChanged,
    NodeExists,
    Operation,
    OutcomeUnknown,
    SetNode,
)

# The outcome of a request that ended so is unknown.
LOST = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    NotReadOnlyCallError,
    KazooTimeoutError,
)
# What the other operations of a failed multi answer.
_NOT_THE_REASON = (RolledBackError, RuntimeInconsistency)


def add(transaction: Any, operations: Sequence[Operation]) -> None:
    """Add operations to a transaction of kazoo's."""
    for operation in operations:
        if isinstance(operation, CreateNode):
            transaction.create(operation.path, operation.data)
        elif isinstance(operation, CreateEphemeral):
            transaction.create(operation.path, operation.data, ephemeral=True)
        elif isinstance(operation, SetNode):
            transaction.set_data(operation.path, operation.data, operation.version)
        elif isinstance(operation, DeleteNode):
            transaction.delete(operation.path, operation.version)
        else:
            transaction.check(operation.path, -1)


def versions(operations: Sequence[Operation], results: Sequence[Any], what: str) -> list[int]:
    """Return the nodes' new versions.

    Raises NodeChanged, NodeExists and OutcomeUnknown; StoreError if it was refused for good.
    """
    found = reasons(results)
    if not found:
        return [
            result.version if isinstance(operation, SetNode) else 0
            for operation, result in zip(operations, results, strict=True)
        ]
    if isinstance(found[0], (BadVersionError, NoNodeError)):
        raise NodeChanged
    if isinstance(found[0], NodeExistsError):
        raise NodeExists
    if isinstance(found[0], LOST):
        raise OutcomeUnknown(name_of(found[0]))
    raise StoreError(f"ZooKeeper refuses to write {what}: {name_of(found[0])}")


def reasons(results: Sequence[Any]) -> list[Exception]:
    """Return what went wrong in a transaction, the reason first."""
    errors = [result for result in results if isinstance(result, Exception)]
    return [error for error in errors if not isinstance(error, _NOT_THE_REASON)] or errors


def name_of(error: BaseException) -> str:
    """Return an error's kind, and what it says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
