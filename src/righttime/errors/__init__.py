"""Every error that righttime raises on purpose, as one tree.

    RightTimeError
    ├── InputError               what was passed in cannot be accepted; nothing changed
    │   ├── UnknownTable         table.unknown
    │   │   └── NotATable        table.is_stream
    │   ├── UnknownColumn        column.unknown
    │   ├── TableExists          table.exists
    │   ├── NameTaken            name.taken
    │   ├── TableAmbiguous       table.ambiguous
    │   ├── BadTable             table.bad
    │   ├── WrongType            value.type
    │   ├── NullNotAllowed       value.null
    │   ├── BatchTooLarge        batch.too_large
    │   ├── BadFreshness         freshness.bad
    │   ├── BadPolicy            policy.bad
    │   ├── BadSetting           setting.bad
    │   │   └── BadArgument      argument.bad
    │   ├── BadSource            source.bad
    │   ├── OperationFailed      operation.failed
    │   ├── SqlRefused           sql.refused
    │   ├── SqlFailed            sql.failed
    │   │   └── SqlFailedInDatabase  sql.failed_in_database
    │   ├── NotInSnapshot        snapshot.without_table
    │   ├── KeyRequired          operation.key_required
    │   ├── OperationRefused     operation.refused
    │   ├── FlowError            a flow cannot be used as it is declared or run
    │   │   ├── BadDeclaration   flow.declaration
    │   │   │   ├── UnknownInFlow  flow.unknown
    │   │   │   │   └── TableNoStream  flow.table_no_stream
    │   │   │   ├── NameTwice    flow.name_twice
    │   │   │   ├── TypeClash    flow.type
    │   │   │   ├── ColumnsFixed  flow.columns_fixed
    │   │   │   ├── BadExpression  flow.expression
    │   │   │   ├── FlowCycle    flow.cycle
    │   │   │   └── NotUnique    flow.not_unique
    │   │   ├── FlowFrozen       flow.frozen
    │   │   ├── ExpectationFailed  flow.expectation
    │   │   ├── LookupFailed     flow.lookup
    │   │   ├── StepFailed       flow.step
    │   │   │   └── TotalTooLarge  flow.total
    │   │   ├── TooManyDeadLetters  flow.dead_letters
    │   │   ├── DrainTooLarge    flow.drain_too_large
    │   │   ├── UnknownFlowLetter  flow.letter_unknown
    │   │   ├── ReplayUnfinished  flow.replay_unfinished   (retryable)
    │   │   ├── TableMaintained  table.maintained
    │   │   │   └── TargetChanged  table.target_changed
    │   │   ├── TableTapped      table.tapped
    │   │   ├── FlowFailed       flow.failed
    │   │   ├── FlowChanged      flow.changed
    │   │   ├── StatesAhead      flow.states_ahead
    │   │   ├── StateMissing     flow.state_missing
    │   │   ├── NotHere          flow.not_here
    │   │   ├── KeyTwice         flow.key_twice
    │   │   ├── NoProject        project.none
    │   │   ├── ProjectTaken     project.taken
    │   │   ├── ProjectNotWritten  project.not_written
    │   │   ├── BadProject       project.bad
    │   │   └── FlowRuns         flow.runs
    │   └── StreamError          a stream cannot be used, or a change was refused
    │       ├── BadStream        stream.bad
    │       ├── UnknownStream    stream.unknown
    │       ├── StreamExists     stream.exists
    │       ├── StreamTime       stream.time
    │       ├── DeadLettersFull  stream.dead_letters_full
    │       ├── UnknownLetter    stream.letter_unknown
    │       ├── StreamAlone      stream.alone
    │       └── ChangeRefused    change.refused
    │           ├── KeyMissing   change.key_missing
    │           ├── RowExists    change.row_exists
    │           ├── RowAbsent    change.row_absent
    │           ├── ImageDiffers change.image_differs
    │           ├── CommitLate   change.late
    │           └── ColumnsChanged  change.columns
    ├── ContractError            the answer that was asked for cannot be given
    │   ├── FreshnessUnavailable freshness.unavailable   (retryable)
    │   │   ├── FreshnessUnknown freshness.unknown       (retryable)
    │   │   └── FlowAsleep       freshness.flow_asleep
    │   ├── AsOfUnavailable      as_of.unavailable
    │   ├── LeaseExpired         lease.expired           (retryable)
    │   ├── TooManySnapshots     snapshot.too_many       (retryable)
    │   ├── AnswerTooLarge       answer.too_large
    │   └── AnswerUnreadable     answer.unreadable
    ├── CommitError              a commit did not happen, or nobody can say whether it did
    │   ├── CatalystFull         catalyst.full           (retryable)
    │   ├── LogFull              log.full                (retryable)
    │   ├── CommitFailed         commit.failed           (retryable)
    │   │   └── StoringFailed    storing.failed          (retryable)
    │   ├── NotStored            commit.not_stored       (retryable)
    │   ├── NotLazy              commit.not_lazy         (retryable)
    │   ├── KeyTaken             key.taken
    │   ├── CommitUnknown        commit.unknown          (retryable)
    │   │   ├── AppendUnknown    append.unknown          (retryable)
    │   │   └── AppendForgotten  append.forgotten
    │   └── ProducerClosed       producer.closed
    ├── WarehouseError           the folder or one of its tables cannot be used
    │   ├── NotAWarehouse        warehouse.not_one
    │   │   └── NoWarehouseYet   warehouse.not_yet
    │   ├── WarehouseNewer       warehouse.newer
    │   ├── WarehouseLocked      warehouse.locked        (retryable)
    │   ├── WarehouseClosed      warehouse.closed
    │   ├── WarehouseReadOnly    warehouse.read_only
    │   ├── WarehouseDamaged     warehouse.damaged
    │   ├── ForeignCommit        warehouse.foreign_commit
    │   │   └── CommitsMixed     warehouse.commits_mixed
    │   ├── AdoptionRefused      table.adoption_refused
    │   ├── DatabaseUnreachable  database.unreachable    (retryable)
    │   ├── OtherDatabase        database.other
    │   ├── StateInDoubt         warehouse.in_doubt      (retryable)
    │   ├── WriterLost           warehouse.writer_lost
    │   ├── RightsMissing        database.rights
    │   ├── SchemaChanged        table.changed
    │   ├── ColumnNotKept        table.column_not_kept
    │   ├── ReferenceBroken      table.reference_broken
    │   ├── RowsMoved            table.rows_moved        (retryable)
    │   ├── VersionGone          table.version_gone      (retryable)
    │   ├── FileNotWritten       file.not_written        (retryable)
    │   └── JavaMissing          java.missing
    ├── ServiceError             the service that has the warehouse cannot be used
    │   ├── ServiceUnreachable   service.unreachable     (retryable)
    │   ├── ServiceBusy          service.busy            (retryable)
    │   ├── ServiceStopping      service.stopping        (retryable)
    │   ├── ServiceFailed        service.failed
    │   ├── SessionLost          session.lost
    │   ├── AccessDenied         access.denied
    │   ├── ClocksApart          service.clocks_apart
    │   ├── NameClaimed          name.claimed            (retryable)
    │   ├── BadMessage           message.bad
    │   └── MessageTooLarge      message.too_large
    └── ReceiptError
        ├── ReceiptForged        receipt.forged
        ├── ReceiptUnbound       receipt.unbound
        ├── ReceiptUnknown       receipt.unknown
        └── ReceiptUnproven      receipt.unproven        (retryable)

A class's docstring is its message: a format string over the error's context. Its last sentence is the way out.
"""

from righttime.errors.commits import (
    AppendForgotten,
    AppendUnknown,
    CatalystFull,
    CommitFailed,
    CommitUnknown,
    KeyTaken,
    LogFull,
    NotLazy,
    NotStored,
    ProducerClosed,
    StoringFailed,
)
from righttime.errors.flows import (
    BadDeclaration,
    BadExpression,
    BadProject,
    BadStream,
    ChangeRefused,
    ColumnsChanged,
    ColumnsFixed,
    CommitLate,
    DeadLettersFull,
    DrainTooLarge,
    ExpectationFailed,
    FlowChanged,
    FlowCycle,
    FlowError,
    FlowFailed,
    FlowFrozen,
    FlowRuns,
    ImageDiffers,
    KeyMissing,
    KeyTwice,
    LookupFailed,
    NameTwice,
    NoProject,
    NotHere,
    NotUnique,
    ProjectNotWritten,
    ProjectTaken,
    ReplayUnfinished,
    RowAbsent,
    RowExists,
    StateMissing,
    StatesAhead,
    StepFailed,
    StreamAlone,
    StreamError,
    StreamExists,
    StreamTime,
    TableMaintained,
    TableNoStream,
    TableTapped,
    TargetChanged,
    TooManyDeadLetters,
    TotalTooLarge,
    TypeClash,
    UnknownFlowLetter,
    UnknownInFlow,
    UnknownLetter,
    UnknownStream,
)
from righttime.errors.groups import CommitError, ContractError, InputError, ReceiptError, RightTimeError, ServiceError, WarehouseError
from righttime.errors.inputs import (
    BadArgument,
    BadFreshness,
    BadPolicy,
    BadSetting,
    BadSource,
    BadTable,
    BatchTooLarge,
    KeyRequired,
    NameTaken,
    NotATable,
    NullNotAllowed,
    OperationFailed,
    OperationRefused,
    TableAmbiguous,
    TableExists,
    UnknownColumn,
    UnknownTable,
    WrongType,
)
from righttime.errors.queries import (
    AnswerTooLarge,
    AnswerUnreadable,
    AsOfUnavailable,
    FlowAsleep,
    FreshnessUnavailable,
    FreshnessUnknown,
    LeaseExpired,
    NotInSnapshot,
    ReceiptForged,
    ReceiptUnbound,
    ReceiptUnknown,
    ReceiptUnproven,
    SqlFailed,
    SqlFailedInDatabase,
    SqlRefused,
    TooManySnapshots,
)
from righttime.errors.service import (
    AccessDenied,
    BadMessage,
    ClocksApart,
    MessageTooLarge,
    NameClaimed,
    ServiceBusy,
    ServiceFailed,
    ServiceStopping,
    ServiceUnreachable,
    SessionLost,
)
from righttime.errors.warehouses import (
    AdoptionRefused,
    ColumnNotKept,
    CommitsMixed,
    DatabaseUnreachable,
    FileNotWritten,
    ForeignCommit,
    JavaMissing,
    NotAWarehouse,
    NoWarehouseYet,
    OtherDatabase,
    ReferenceBroken,
    RightsMissing,
    RowsMoved,
    SchemaChanged,
    StateInDoubt,
    VersionGone,
    WarehouseClosed,
    WarehouseDamaged,
    WarehouseLocked,
    WarehouseNewer,
    WarehouseReadOnly,
    WriterLost,
)

__all__ = [
    "AccessDenied",
    "AdoptionRefused",
    "AnswerTooLarge",
    "AnswerUnreadable",
    "AppendForgotten",
    "AppendUnknown",
    "AsOfUnavailable",
    "BadArgument",
    "BadDeclaration",
    "BadExpression",
    "BadFreshness",
    "BadMessage",
    "BadPolicy",
    "BadProject",
    "BadSetting",
    "BadSource",
    "BadStream",
    "BadTable",
    "BatchTooLarge",
    "CatalystFull",
    "ChangeRefused",
    "ClocksApart",
    "ColumnNotKept",
    "ColumnsChanged",
    "ColumnsFixed",
    "CommitError",
    "CommitFailed",
    "CommitLate",
    "CommitUnknown",
    "CommitsMixed",
    "ContractError",
    "DatabaseUnreachable",
    "DeadLettersFull",
    "DrainTooLarge",
    "ExpectationFailed",
    "FileNotWritten",
    "FlowAsleep",
    "FlowChanged",
    "FlowCycle",
    "FlowError",
    "FlowFailed",
    "FlowFrozen",
    "FlowRuns",
    "ForeignCommit",
    "FreshnessUnavailable",
    "FreshnessUnknown",
    "ImageDiffers",
    "InputError",
    "JavaMissing",
    "KeyMissing",
    "KeyRequired",
    "KeyTaken",
    "KeyTwice",
    "LeaseExpired",
    "LogFull",
    "LookupFailed",
    "MessageTooLarge",
    "NameClaimed",
    "NameTaken",
    "NameTwice",
    "NoProject",
    "NoWarehouseYet",
    "NotATable",
    "NotAWarehouse",
    "NotHere",
    "NotInSnapshot",
    "NotLazy",
    "NotStored",
    "NotUnique",
    "NullNotAllowed",
    "OperationFailed",
    "OperationRefused",
    "OtherDatabase",
    "ProducerClosed",
    "ProjectNotWritten",
    "ProjectTaken",
    "ReceiptError",
    "ReceiptForged",
    "ReceiptUnbound",
    "ReceiptUnknown",
    "ReceiptUnproven",
    "ReferenceBroken",
    "ReplayUnfinished",
    "RightTimeError",
    "RightsMissing",
    "RowAbsent",
    "RowExists",
    "RowsMoved",
    "SchemaChanged",
    "ServiceBusy",
    "ServiceError",
    "ServiceFailed",
    "ServiceStopping",
    "ServiceUnreachable",
    "SessionLost",
    "SqlFailed",
    "SqlFailedInDatabase",
    "SqlRefused",
    "StateInDoubt",
    "StateMissing",
    "StatesAhead",
    "StepFailed",
    "StoringFailed",
    "StreamAlone",
    "StreamError",
    "StreamExists",
    "StreamTime",
    "TableAmbiguous",
    "TableExists",
    "TableMaintained",
    "TableNoStream",
    "TableTapped",
    "TargetChanged",
    "TooManyDeadLetters",
    "TooManySnapshots",
    "TotalTooLarge",
    "TypeClash",
    "UnknownColumn",
    "UnknownFlowLetter",
    "UnknownInFlow",
    "UnknownLetter",
    "UnknownStream",
    "UnknownTable",
    "VersionGone",
    "WarehouseClosed",
    "WarehouseDamaged",
    "WarehouseError",
    "WarehouseLocked",
    "WarehouseNewer",
    "WarehouseReadOnly",
    "WriterLost",
    "WrongType",
]
