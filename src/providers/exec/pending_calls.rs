//! Calls in flight, and invalid lines.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::engine::command::{CommandResult, FailureKind};
use crate::host::text;
use crate::providers::exec::error::ProgramError;
use crate::providers::exec::line_reader::ProgramLine;
use crate::providers::exec::protocol::{ClusterScope, Expect, ProviderCall};
use crate::providers::exec::{ProgramLimits, protocol};
use crate::telemetry::report_metrics;

/// A call to the program.
pub(crate) struct PendingCall {
    pub(crate) call: ProviderCall,
    pub(crate) expect: Expect,
    /// Its deadline.
    pub(crate) by: Instant,
    pub(crate) reply: oneshot::Sender<CommandResult>,
}

struct WaitingCall {
    expect: Expect,
    by: Instant,
    reply: oneshot::Sender<CommandResult>,
}

/// Calls in flight of one run of the program.
pub(crate) struct PendingCalls<'a> {
    scope: &'a ClusterScope,
    limits: &'a ProgramLimits,
    waiting: BTreeMap<u64, WaitingCall>,
    next: u64,
    /// Bytes to write.
    pub(crate) out: Vec<u8>,
    /// Consecutive calls without a response.
    silent: u32,
    /// Consecutive invalid lines.
    garbage: u32,
    /// Foreign instances in the last listing.
    others: usize,
}

/// A failure with an unknown outcome.
pub(crate) fn unknown(why: &str) -> CommandResult {
    CommandResult::Failed {
        kind: FailureKind::Unknown,
        text: text::bounded(why),
    }
}

impl<'a> PendingCalls<'a> {
    pub(crate) fn new(scope: &'a ClusterScope, limits: &'a ProgramLimits) -> Self {
        Self {
            scope,
            limits,
            waiting: BTreeMap::new(),
            // Id 0 is the hello.
            next: 1,
            out: Vec::new(),
            silent: 0,
            garbage: 0,
            others: 0,
        }
    }

    /// Returns whether the next call may be written. Calls are written one at a time, so that
    /// callers wait when there are too many.
    pub(crate) fn is_free(&self) -> bool {
        self.out.is_empty() && self.waiting.len() < self.limits.open
    }

    /// Queues a call for writing.
    pub(crate) fn put(&mut self, pending: PendingCall, now: Instant) {
        if pending.reply.is_closed() {
            return;
        }
        let remaining = pending.by.saturating_duration_since(now).as_millis();
        let remaining = u64::try_from(remaining).unwrap_or(u64::MAX);
        let id = self.next;
        self.next += 1;
        match protocol::line(id, remaining, self.scope, &pending.call) {
            Ok(line) => self.out = line,
            Err(error) => {
                drop(pending.reply.send(unknown(&error.to_string())));
                return;
            }
        }
        let PendingCall {
            expect, by, reply, ..
        } = pending;
        self.waiting.insert(id, WaitingCall { expect, by, reply });
    }

    /// Records written bytes.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.out.drain(..bytes.min(self.out.len()));
    }

    /// The earliest deadline.
    pub(crate) fn first_due(&self) -> Option<Instant> {
        self.waiting.values().map(|call| call.by).min()
    }

    /// Fails calls past their deadline. Returns an error if the program does not respond.
    pub(crate) fn expire(&mut self, now: Instant) -> Result<(), ProgramError> {
        let late = self.waiting.extract_if(.., |_, call| call.by <= now);
        for (_, call) in late {
            let text = format!("no response within {:?}", self.limits.call);
            drop(call.reply.send(unknown(&text)));
            self.silent += 1;
        }
        if self.silent > 0 && !self.out.is_empty() {
            return Err(ProgramError::StdinNotRead);
        }
        match self.silent >= self.limits.silent {
            true => Err(ProgramError::NoResponses(self.silent)),
            false => Ok(()),
        }
    }

    /// Processes a line of the program.
    pub(crate) fn take(&mut self, line: &ProgramLine) -> Result<(), ProgramError> {
        let line = match line {
            ProgramLine::Whole(line) => line,
            ProgramLine::TooLong => {
                let longest = self.limits.line;
                return self.pass_over(&format!("longer than {longest} bytes"));
            }
        };
        let call = match protocol::answered(line) {
            Err(error) => return self.pass_over(&error.to_string()),
            Ok(id) => match self.waiting.remove(&id) {
                None => return self.pass_over(&format!("no pending call {id}")),
                Some(call) => call,
            },
        };
        match protocol::answer(line, &call.expect, self.scope) {
            Ok((answer, others)) => {
                drop(call.reply.send(answer));
                (self.silent, self.garbage) = (0, 0);
                if matches!(call.expect, Expect::List) {
                    self.log_discarded_calls(others);
                }
                Ok(())
            }
            Err(error) => {
                let text = format!("invalid response of the program: {error}");
                drop(call.reply.send(unknown(&text)));
                self.pass_over(&error.to_string())
            }
        }
    }

    fn log_discarded_calls(&mut self, others: usize) {
        let cluster = &self.scope.cluster;
        if others > 0 && self.others == 0 {
            tracing::warn!(%cluster, others, "ignoring foreign instances listed by exec program");
        }
        self.others = others;
    }

    fn pass_over(&mut self, why: &str) -> Result<(), ProgramError> {
        let cluster = &self.scope.cluster;
        report_metrics::program_rambled(cluster);
        self.garbage += 1;
        if self.garbage == 1 {
            let why = text::bounded(why);
            tracing::warn!(%cluster, why, "exec program wrote an invalid line");
        }
        match self.garbage >= self.limits.garbage {
            true => Err(ProgramError::InvalidLines(self.garbage)),
            false => Ok(()),
        }
    }

    /// Fails all calls in flight.
    pub(crate) fn close(self, why: &str) {
        for call in self.waiting.into_values() {
            drop(call.reply.send(unknown(why)));
        }
    }
}
