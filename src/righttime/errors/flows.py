"""Errors of streams and flows.

In: what code that declares, feeds or runs a flow did.
Out: one class for each outcome, with its code and the way out.
Promise: as all errors of righttime; the tree is drawn in the package's docstring.
"""

from righttime.errors.groups import InputError
from righttime.errors.spark_words import SaysWhy


class FlowError(InputError):
    """The flow cannot be used. See the context."""

    code = "flow"


class BadDeclaration(FlowError):
    """{origin}: {reason}. Correct the declaration of flow {flow!r}; no row was moved."""

    code = "flow.declaration"


class UnknownInFlow(BadDeclaration):
    """{origin}: there is no {what} {name!r}; known: {known}. Correct the name in flow {flow!r}; no row was moved."""

    code = "flow.unknown"


class TableNoStream(UnknownInFlow):
    """{origin}: there is no stream {name!r}; it is a table. Flow {flow!r} reads streams: {advice}; no row was moved."""

    code = "flow.table_no_stream"


class NameTwice(BadDeclaration):
    """{origin}: the step has two columns {name!r}. Rename one of them with select() before it, in flow {flow!r}; no row was moved."""

    code = "flow.name_twice"


class TypeClash(BadDeclaration):
    """{origin}: {what} is {found} where {expected} is needed. Cast it in flow {flow!r}, or change the other side; no row was moved."""

    code = "flow.type"


class ColumnsFixed(BadDeclaration):
    """{origin}: table {table!r} exists, and {reason}. Its columns are fixed, and a refresh does not change them: keep to them ({known}),
    or name another table in into() in flow {flow!r}; no row was moved."""

    code = "flow.columns_fixed"


class BadExpression(SaysWhy, BadDeclaration):
    """{origin}: the expression {expression!r} cannot be used: {reason}. Correct it in flow {flow!r}; no row was moved."""

    code = "flow.expression"


class FlowCycle(BadDeclaration):
    """{origin}: the flows read what they write: {path}. Write into a table that no stream of them comes from; no row was moved."""

    code = "flow.cycle"


class NotUnique(BadDeclaration):
    """{origin}: {what} may have several rows with one key ({keys}). Read a stream with these keys, or aggregate by them, in flow {flow!r}; no row was moved."""

    code = "flow.not_unique"


class FlowFrozen(FlowError):
    """{origin}: flow {flow!r} is in use and cannot be changed. Declare all its steps before it is run, or declare another flow."""

    code = "flow.frozen"


class ExpectationFailed(FlowError):
    """Flow {flow!r}, job {job}: {rows} rows do not meet expectation {name!r} ({condition}), declared at {origin}, such as {example}.
    Correct them at the source, or declare otherwise="drop"."""

    code = "flow.expectation"

    def _message(self) -> str:
        return super()._message().replace(" 1 rows do not meet ", " 1 row does not meet ", 1)


class LookupFailed(FlowError):
    """Flow {flow!r}, job {job}: {rows} rows have no counterpart in the look-up declared at {origin}, such as {example}.
    Load what they refer to, or declare missing="dead_letter"."""

    code = "flow.lookup"

    def _message(self) -> str:
        return super()._message().replace(" 1 rows have ", " 1 row has ", 1)


class StepFailed(SaysWhy, FlowError):
    """Flow {flow!r}: the step declared at {origin} failed: {reason}. Nothing was published; correct the flow, then refresh it."""

    code = "flow.step"


class TotalTooLarge(StepFailed):
    """Flow {flow!r}: a total of the step declared at {origin} does not fit: {reason}. Nothing was published. Change or delete rows of it at their source
    and run the flow again; or have a wider total, such as of CAST(x AS DECIMAL(38, 0)), in another table."""

    code = "flow.total"


class TooManyDeadLetters(SaysWhy, FlowError):
    """Flow {flow!r}: more than {bound} rows of jobs {jobs} fail (dead_letters_max), the last at {origin}: {reason}.
    Nothing was published; correct the flow or the source, or raise the bound."""

    code = "flow.dead_letters"


class DrainTooLarge(FlowError):
    """Flow {flow!r}: a row fails in jobs {jobs}, and they give more rows ({bound}, drain_output_rows_max) than can be searched for it in memory.
    Nothing was published; mend the row at its source, or raise the bound, and run the flow again."""

    code = "flow.drain_too_large"


class UnknownFlowLetter(FlowError):
    """Flow {flow!r} has no dead letter {ids}. Choose from its table of dead letters, where those that were mended are gone; {others}."""

    code = "flow.letter_unknown"


class ReplayUnfinished(FlowError):
    """Flow {flow!r} has not tried its dead letters again: {why}. See that it runs and its streams go on, then call replay() again."""

    code = "flow.replay_unfinished"
    retryable = True


class TableMaintained(FlowError):
    """Table {table!r} is maintained by flow {flow!r}: it holds what the flow makes of its streams. Change the streams, or write into another table."""

    code = "table.maintained"


class TargetChanged(TableMaintained):
    """Table {table!r} is maintained by flow {flow!r}, and in version {version} another writer has changed its rows.
    Restore version {known} of the table, adopt that, and change the streams; nothing was taken over."""

    code = "table.target_changed"


class TableTapped(FlowError):
    """Table {table!r} is a stream, too, and the stream would never have what another writer did to it.
    Restore version {version} of the table and load those rows with a producer; nothing was taken over."""

    code = "table.tapped"


class StreamError(InputError):
    """The stream cannot be used in this way. See the context."""

    code = "stream"


class BadStream(StreamError):
    """Stream {stream!r} cannot be declared or changed like this: {reason}. Correct the call; nothing was changed."""

    code = "stream.bad"


class UnknownStream(StreamError):
    """There is no stream {stream!r}; known streams: {known}. Create it with create_stream, or correct the name."""

    code = "stream.unknown"


class StreamExists(StreamError):
    """Stream {stream!r} exists already; {declared}. Use another name, the existing stream, or if_not_exists=True with the same declaration."""

    code = "stream.exists"


class StreamTime(StreamError):
    """Stream {stream!r}: {reason}. Give the commit time as time=, an aware datetime or microseconds since 1970, to streams with times="source",
    and none to others; nothing was changed."""

    code = "stream.time"


class DeadLettersFull(StreamError):
    """Stream {stream!r} would have {letters} dead letters, over the bound {bound} (stream_dead_letters_max). Nothing of this append was taken;
    correct the changes, or replay or discard old dead letters."""

    code = "stream.dead_letters_full"


class UnknownLetter(StreamError):
    """Stream {stream!r} has no dead letter {numbers}. Choose from dead_letters(), where those that were replayed or discarded are gone; nothing was changed."""

    code = "stream.letter_unknown"


class StreamAlone(StreamError):
    """You cannot {what} in a group of catalysts: a stream is at one of them, with the flows that read it.
    Open that service alone, by its own address; nothing was changed."""

    code = "stream.alone"


class ChangeRefused(StreamError):
    """Stream {stream!r}, row {row}: {reason}. Correct the change; nothing of this append was taken."""

    code = "change.refused"


class KeyMissing(ChangeRefused):
    """Stream {stream!r}, row {row}: {reason}. Give all columns of the key; nothing of this append was taken."""

    code = "change.key_missing"


class RowExists(ChangeRefused):
    """Stream {stream!r}, row {row}: {reason}. Send an update, or delete the row first; nothing of this append was taken."""

    code = "change.row_exists"


class RowAbsent(ChangeRefused):
    """Stream {stream!r}, row {row}: {reason}. Send an insert first, or leave the change out; nothing of this append was taken."""

    code = "change.row_absent"


class ImageDiffers(ChangeRefused):
    """Stream {stream!r}, row {row}: {reason}. Send the row as it is now, or no preimage at all; nothing of this append was taken."""

    code = "change.image_differs"


class CommitLate(ChangeRefused):
    """Stream {stream!r}, row {row}: {reason}. Append commits in the order of their times; nothing of this append was taken."""

    code = "change.late"


class ColumnsChanged(ChangeRefused):
    """Stream {stream!r}, row {row}: {reason}. Correct the row; only if the source has other columns now, create another stream;
    nothing of this append was taken."""

    code = "change.columns"


class FlowFailed(FlowError):
    """Flow {flow!r} has stopped: {reason}. What it published stays, and on_late="answer" gives that; mend the cause and run the flow again."""

    code = "flow.failed"


class FlowChanged(FlowError):
    """Flow {flow!r} is declared differently than when its state was made, or an earlier version made it.
    Run it with refresh=True to build its targets anew, or as it was before."""

    code = "flow.changed"


class StatesAhead(FlowError):
    """The state of flow {flow!r} is summed up to job {known}, past job {job}, the last that the warehouse has.
    Run it with refresh=True to build its targets anew."""

    code = "flow.states_ahead"


class StateMissing(FlowError):
    """Flow {flow!r} has published {jobs} jobs in this warehouse, and {folder}, which has what it remembers, is not there.
    Put it back (a PostgreSQL warehouse has it in state_dir), or run it with refresh=True to build its targets anew from what the streams have now."""

    code = "flow.state_missing"


class NotHere(FlowError):
    """You cannot {what} here: flows are with the process that has the warehouse open. Do it there, in the program of the service."""

    code = "flow.not_here"


class KeyTwice(FlowError):
    """Flow {flow!r}, job {job}: table {table!r}, kept by the step declared at {origin}, would have two rows with key {key}.
    Give it keys that are unique, or make it additive, in another table if this one exists, whose keys stay; nothing was published."""

    code = "flow.key_twice"


class NoProject(FlowError):
    """{path} is no project: {reason}. Go to the folder of a project, or make one with `righttime init`."""

    code = "project.none"


class ProjectTaken(FlowError):
    """Nothing was written to {path}, because of what is there already: {names}.
    Choose another folder, such as a new one below it (`righttime init shop`), or move that away."""

    code = "project.taken"


class ProjectNotWritten(FlowError):
    """The project could not be written to {path}: {reason}. Choose another folder, or see to rights and room there; nothing of it was left behind."""

    code = "project.not_written"


class BadProject(FlowError):
    """{origin}: {reason}. Correct the project; no row was moved."""

    code = "project.bad"


class FlowRuns(FlowError):
    """Flow {flow!r} runs already in this process. Stop it first, or use the one that runs."""

    code = "flow.runs"
