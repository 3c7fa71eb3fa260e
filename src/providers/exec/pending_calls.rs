//! Calls in flight, and invalid lines.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::host::text;
use crate::provider::{CommandResult, FailureKind};
use crate::providers::exec::ProgramLimits;
use crate::providers::exec::error::ProgramError;
use crate::providers::exec::line_reader::ProgramLine;
use crate::providers::exec_protocol::{self, ClusterScope, Expect, ProviderCall};
use crate::telemetry::report_metrics;

/// A call to the program.
pub(crate) struct PendingCall {
    pub(crate) call: ProviderCall,
    pub(crate) expect: Expect,
    /// The deadline of the call.
    pub(crate) deadline: Instant,
    pub(crate) reply: oneshot::Sender<CommandResult>,
}

struct WaitingCall {
    expect: Expect,
    deadline: Instant,
    reply: oneshot::Sender<CommandResult>,
}

/// Calls in flight of one run of the program.
pub(crate) struct PendingCalls<'a> {
    scope: &'a ClusterScope,
    limits: &'a ProgramLimits,
    waiting: BTreeMap<u64, WaitingCall>,
    next: u64,
    /// Bytes to write.
    pub(crate) unwritten: Vec<u8>,
    /// Consecutive calls without a response.
    unanswered: u32,
    /// Consecutive invalid lines.
    invalid_lines: u32,
    /// Foreign instances in the last listing.
    foreign_instances: usize,
}

/// Returns the result of a call whose outcome is unknown.
pub(crate) fn unknown_outcome(why: &str) -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Unknown, text: text::bounded_line(why) }
}

impl<'a> PendingCalls<'a> {
    pub(crate) fn new(scope: &'a ClusterScope, limits: &'a ProgramLimits) -> Self {
        Self {
            scope,
            limits,
            waiting: BTreeMap::new(),
            // Id 0 is the hello.
            next: 1,
            unwritten: Vec::new(),
            unanswered: 0,
            invalid_lines: 0,
            foreign_instances: 0,
        }
    }

    /// Returns whether the next call may be written. Calls are written one at a time, so that
    /// callers wait when too many calls are in flight.
    pub(crate) fn is_free(&self) -> bool {
        self.unwritten.is_empty() && self.waiting.len() < self.limits.max_in_flight
    }

    /// Queues a call for writing.
    pub(crate) fn queue_call(&mut self, pending: PendingCall, now: Instant) {
        if pending.reply.is_closed() {
            return;
        }
        let remaining = pending.deadline.saturating_duration_since(now).as_millis();
        let remaining = u64::try_from(remaining).unwrap_or(u64::MAX);
        let id = self.next;
        self.next += 1;
        match exec_protocol::request_line(id, remaining, self.scope, &pending.call) {
            Ok(line) => self.unwritten = line,
            Err(error) => {
                drop(pending.reply.send(unknown_outcome(&error.to_string())));
                return;
            }
        }
        let PendingCall { expect, deadline, reply, .. } = pending;
        self.waiting.insert(id, WaitingCall { expect, deadline, reply });
    }

    /// Records written bytes.
    pub(crate) fn on_written(&mut self, bytes: usize) {
        self.unwritten.drain(..bytes.min(self.unwritten.len()));
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|call| call.deadline).min()
    }

    /// Returns an error to the callers of all calls past their deadline. Returns an error if the
    /// program does not respond.
    pub(crate) fn fail_overdue(&mut self, now: Instant) -> Result<(), ProgramError> {
        let late = self.waiting.extract_if(.., |_, call| call.deadline <= now);
        for (_, call) in late {
            let text = format!("no response within {:?}", self.limits.call_timeout);
            drop(call.reply.send(unknown_outcome(&text)));
            self.unanswered += 1;
        }
        if self.unanswered > 0 && !self.unwritten.is_empty() {
            return Err(ProgramError::StdinNotRead);
        }
        match self.unanswered >= self.limits.max_unanswered {
            true => Err(ProgramError::NoResponses(self.unanswered)),
            false => Ok(()),
        }
    }

    /// Processes a line of the program.
    pub(crate) fn on_line(&mut self, line: &ProgramLine) -> Result<(), ProgramError> {
        let line = match line {
            ProgramLine::Whole(line) => line,
            ProgramLine::TooLong => {
                let longest = self.limits.max_line_bytes;
                return self.on_invalid_line(&format!("longer than {longest} bytes"));
            }
        };
        let call = match exec_protocol::response_id(line) {
            Err(error) => return self.on_invalid_line(&error.to_string()),
            Ok(id) => match self.waiting.remove(&id) {
                None => return self.on_invalid_line(&format!("no pending call {id}")),
                Some(call) => call,
            },
        };
        match exec_protocol::parse_response(line, &call.expect, self.scope) {
            Ok((answer, others)) => {
                drop(call.reply.send(answer));
                (self.unanswered, self.invalid_lines) = (0, 0);
                if matches!(call.expect, Expect::List) {
                    self.log_foreign_instances(others);
                }
                Ok(())
            }
            Err(error) => {
                let text = format!("invalid response of the program: {error}");
                drop(call.reply.send(unknown_outcome(&text)));
                self.on_invalid_line(&error.to_string())
            }
        }
    }

    fn log_foreign_instances(&mut self, others: usize) {
        let cluster = &self.scope.cluster;
        if others > 0 && self.foreign_instances == 0 {
            tracing::warn!(%cluster, others, "ignoring foreign instances listed by exec program");
        }
        self.foreign_instances = others;
    }

    fn on_invalid_line(&mut self, why: &str) -> Result<(), ProgramError> {
        let cluster = &self.scope.cluster;
        report_metrics::count_invalid_line(cluster);
        self.invalid_lines += 1;
        if self.invalid_lines == 1 {
            let why = text::bounded_line(why);
            tracing::warn!(%cluster, why, "exec program wrote an invalid line");
        }
        match self.invalid_lines >= self.limits.max_invalid_lines {
            true => Err(ProgramError::InvalidLines(self.invalid_lines)),
            false => Ok(()),
        }
    }

    /// Returns an error to the callers of all calls in flight.
    pub(crate) fn fail_all(self, why: &str) {
        for call in self.waiting.into_values() {
            drop(call.reply.send(unknown_outcome(why)));
        }
    }
}
