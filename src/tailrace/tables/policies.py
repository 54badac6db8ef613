"""Resource policies of tables and of their change streams: rows, commands, and the check of every other command.

The policies of a database are few, so each process has all of them compiled in memory (`PolicyBook`); a change is in
the notices of its commit. While there is none, a command is not looked at. A process that does not write trusts what it
has in memory only while it hears from the writer (`bus/remote_policies.py`), and reads the rows otherwise.

The actions of a policy are those of the DynamoDB API. A command of another API is the action that it amounts to: what
is not in `_ACTIONS` reads like a Scan, writes like PutItem, UpdateItem and DeleteItem, or administers like UpdateTable.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from tailrace import policy
from tailrace.access import SYSTEM, Permission, Principal
from tailrace.command import Command, Query
from tailrace.errors import Forbidden, Invalid, NotFound
from tailrace.log.tail import MISSED, POLICIES_CHANGED
from tailrace.policy import ACCOUNT, ALLOW, DENY, Policy
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable
from tailrace.tables.definition import find

NO_POLICY: Final = "NO_POLICY"
NO_POLICY_CODE: Final = "PolicyNotFoundException"
_OWN: Final = ("PutResourcePolicy", "GetResourcePolicy", "DeleteResourcePolicy")
_WRITES: Final = ("PutItem", "UpdateItem", "DeleteItem")
_STREAMS: Final = {
    "ReadChanges": "GetRecords", "ReadEntries": "GetRecords", "FindStreamBounds": "GetShardIterator",
    "DescribeChangeStream": "DescribeStream", "ListTableStreams": "ListStreams", "ListRecentStreams": "ListStreams",
    "FindStream": "DescribeStream",
}  # fmt: skip
_ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (name,) for name in (
        "GetItem", "PutItem", "UpdateItem", "DeleteItem", "DescribeTable", "UpdateTable", "DeleteTable", "CreateTable",
        "CreateBackup", "DescribeBackup", "ListBackups", "DeleteBackup", "DescribeTimeToLive", *_OWN,
    )},
    **{name: (action,) for name, action in _STREAMS.items()},
    "QueryItems": ("Query",), "ScanItems": ("Scan",), "BatchGet": ("BatchGetItem",), "TransactGet": ("GetItem",),
    "BatchWrite": ("BatchWriteItem",),
    "CheckItem": ("ConditionCheckItem",), "CheckWhere": ("ConditionCheckItem",),
    "UpdateWhere": ("UpdateItem",), "DeleteWhere": ("DeleteItem",), "InsertItem": ("PutItem",),
    "FindTable": ("DescribeTable",), "FindTables": ("DescribeTable",), "CheckTable": ("DescribeTable",),
    "DescribeRestore": ("DescribeTable",), "RestoreBackup": ("RestoreTableFromBackup",),
    "RestoreToPointInTime": ("RestoreTableToPointInTime",), "SetRecovery": ("UpdateContinuousBackups",),
    "DescribeRecovery": ("DescribeContinuousBackups",), "SetTimeToLive": ("UpdateTimeToLive",),
    "TagTable": ("TagResource",), "UntagTable": ("UntagResource",), "ListTags": ("ListTagsOfResource",),
    "ExportTable": ("ExportTableToPointInTime",), "ImportTable": ("ImportTable",),
    "InsertRows": ("PutItem",), "UpdateRows": ("UpdateItem",), "DeleteRows": ("DeleteItem",),
}  # fmt: skip


class PolicyRow(msgspec.Struct, frozen=True):
    name: str  # of the table
    label: str  # of its change stream; empty: the policy is the table's
    revision: str
    text: str


POLICIES = StorageTable("policies", PolicyRow, key=("name", "label"))


class PolicyChanged(msgspec.Struct, frozen=True):
    """The notice of a change; `text` None: the policy was deleted."""

    name: str
    label: str
    text: str | None


def resource_of(name: str, label: str) -> str:
    return f"table/{name}/stream/{label}" if label else f"table/{name}"


# -- commands


def _check_resource(reader: Reader | Tx, name: str, label: str) -> None:
    definition = find(reader, name)
    stream = definition.stream
    if label and (stream is None or stream.hidden or stream.label != label):
        raise NotFound(f"Requested resource not found: Stream: {label} of table {name} not found")


def _not_found(name: str, label: str) -> NotFound:
    return NotFound(
        f"Resource-based policy not found for the provided ResourceArn: {resource_of(name, label)}",
        code=NO_POLICY_CODE,
    )


class PutPolicy(Command[str], frozen=True):
    """Attach a policy to a table or stream; its revision. `expected`: only if that is the present revision."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    label: str
    text: str
    expected: str | None = None
    confirmed: bool = False  # the caller may lose its own access to the policy
    caller: tuple[str, str] | None = None  # name and role

    def for_principal(self, principal: Principal) -> PutPolicy:
        return msgspec.structs.replace(self, caller=(principal.name, principal.role))

    def run(self, tx: Tx) -> str:
        _check_resource(tx, self.table, self.label)
        resource = resource_of(self.table, self.label)
        parsed = policy.parse(self.text, resource)
        if self.caller is not None and not self.confirmed:
            for action in _OWN:
                if parsed.verdict(*self.caller, action, resource, tx.now_ms) == DENY:
                    raise Invalid(
                        f"the resource policy would deny {self.caller[0]!r} {action} on the resource itself; "
                        "to put it all the same, set ConfirmRemoveSelfResourceAccess"
                    )
        present = tx.get(POLICIES, self.table, self.label)
        _check_revision(present, self.expected, self.table, self.label)
        if present is not None and json.loads(present.text) == json.loads(self.text):
            return present.revision
        number = tx.now_ms if present is None else max(tx.now_ms, int(present.revision) + 1)
        tx.put(POLICIES, PolicyRow(self.table, self.label, str(number), self.text))
        tx.notify(POLICIES_CHANGED, PolicyChanged(self.table, self.label, self.text))
        return str(number)


def _check_revision(present: PolicyRow | None, expected: str | None, name: str, label: str) -> None:
    """A revision that is not the expected one is a policy that is not there, as in the service."""
    if expected is None or expected == (NO_POLICY if present is None else present.revision):
        return
    raise _not_found(name, label)


class GetPolicy(Query[PolicyRow], frozen=True):
    """The policy of a table or stream."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    label: str

    def run(self, reader: Reader) -> PolicyRow:
        _check_resource(reader, self.table, self.label)
        row = reader.get(POLICIES, self.table, self.label)
        if row is None:
            raise _not_found(self.table, self.label)
        return row


class DeletePolicy(Command[str], frozen=True):
    """Delete the policy of a table or stream, if there is one; its revision, or an empty text."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    label: str
    expected: str | None = None

    def run(self, tx: Tx) -> str:
        _check_resource(tx, self.table, self.label)
        present = tx.get(POLICIES, self.table, self.label)
        if self.expected is not None:
            _check_revision(present, self.expected, self.table, self.label)
        if present is None:
            return ""
        _delete(tx, present)
        return present.revision


def _delete(tx: Tx, row: PolicyRow) -> None:
    tx.delete(POLICIES, row.name, row.label)
    tx.notify(POLICIES_CHANGED, PolicyChanged(row.name, row.label, None))


def drop_policies(tx: Tx, name: str) -> None:
    """Delete the policies of a table that is deleted."""
    for row in list(tx.scan(POLICIES, name)):
        _delete(tx, row)


class ListPolicies(Query[list[PolicyRow]], frozen=True):
    """All policies of the database."""

    permission = Permission.SYSTEM

    def run(self, reader: Reader) -> list[PolicyRow]:
        return list(reader.scan(POLICIES))


# -- the check

Policies = dict[str, dict[str, Policy]]  # by table, and by the label of a stream; empty: of the table itself


class PolicyBook:
    """The policies of a database, compiled. `active`: there are some, or it is not known; commands are checked then."""

    def __init__(self, load: Callable[[], Iterable[PolicyRow]], now_ms: Callable[[], int]) -> None:
        self._load = load
        self._now_ms = now_ms
        self._known: Policies | None = None  # None: not read yet, or a change was missed
        self._changes = 0
        self._changing = threading.Lock()  # a change may be noticed while another thread loads
        self.active = True

    def notice(self, changes: list[Any]) -> None:
        """A commit has changed policies."""
        with self._changing:
            self._changes += 1
            known = self._known
            if MISSED in changes or known is None:
                self._keep(None)
                return
            for each in changes:
                held = dict(known.get(each.name, {}))
                if each.text is None:
                    held.pop(each.label, None)
                else:
                    held[each.label] = policy.parse(each.text, resource_of(each.name, each.label))
                known = {name: kept for name, kept in {**known, each.name: held}.items() if kept}
            self._keep(known)

    def _keep(self, known: Policies | None) -> None:
        self._known, self.active = known, known is None or bool(known)

    def known(self) -> Policies | None:
        """The policies by table and label, if they are in memory."""
        return self._known

    def missing(self, principal: Principal) -> bool:
        """Whether they have to be read before a command of this principal is checked."""
        return principal is not SYSTEM and self.known() is None

    def load(self) -> Policies:
        """The policies by table and label; they are read unless they are known."""
        known = self.known()
        if known is None:
            changes, known = self._changes, {}
            for row in self._load():
                known.setdefault(row.name, {})[row.label] = policy.parse(row.text, resource_of(row.name, row.label))
            with self._changing:
                if changes == self._changes:  # otherwise a change may be missing in what was read
                    self._keep(known)
        return known

    def allowed(self, command: Any, principal: Principal) -> frozenset[str]:
        """The subjects of a command that policies allow; raises `Forbidden` if one is denied."""
        return self.allowed_by(self.load(), command, principal)

    def allowed_by(self, known: Policies, command: Any, principal: Principal) -> frozenset[str]:
        """The same by policies that were loaded for this command."""
        if not known:
            return frozenset()
        allowed = []
        for subject in command.subjects():
            kind, _, name = subject.partition("/")
            if kind == "tables" and name in known and self._allows(known[name], command, name, principal):
                allowed.append(subject)
        return frozenset(allowed)

    def _allows(self, policies: dict[str, Policy], command: Any, name: str, principal: Principal) -> bool:
        verdicts: list[str | None] = []
        now_ms = self._now_ms()
        for action in actions_of(command, name):
            index, label = getattr(command, "index", None), getattr(command, "label", None)
            resource = f"table/{name}/index/{index}" if isinstance(index, str) and index else f"table/{name}"
            of_stream = type(command).__name__ in _STREAMS or (bool(label) and action in _OWN)
            found: str | None = None
            for attached, each in policies.items():
                if attached and (not of_stream or label not in (None, "", attached)):
                    continue
                about = f"table/{name}/stream/{attached}" if attached else resource
                verdict = each.verdict(principal.name, principal.role, action, about, now_ms)
                if verdict == DENY and not (action in _OWN and principal.role == "system"):
                    raise Forbidden(
                        f"User: arn:aws:iam::{ACCOUNT}:user/{principal.name} is not authorized to perform: "
                        f"dynamodb:{action} on resource: {about} with an explicit deny in a resource-based policy",
                        code="DENIED_BY_POLICY",
                    )
                if verdict == ALLOW:
                    found = ALLOW
            verdicts.append(found)
        return bool(verdicts) and all(verdict == ALLOW for verdict in verdicts)


def actions_of(command: Any, table: str) -> tuple[str, ...]:
    """The actions of the DynamoDB API that a command does to a table."""
    kind = type(command).__name__
    if kind in ("PutPolicy", "GetPolicy", "DeletePolicy"):
        return (kind.replace("Policy", "ResourcePolicy"),)
    if kind == "TransactWrite":
        named = {type(each).__name__ for each in command.actions if each.table == table}
        return tuple(sorted({action for each in named for action in _ACTIONS.get(each, _WRITES)}))
    known = _ACTIONS.get(kind)
    if known is not None:
        return known
    if isinstance(command, Query):
        return ("Scan",)
    if command.permission == Permission.READ:
        return ("GetItem",)
    return _WRITES if command.permission in (Permission.WRITE, Permission.CONSUME) else ("UpdateTable",)
