//! Calls that wait for their answers, and the lines that come instead.
//! It must not know how lines travel, nor when the program runs.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::engine::command::{CommandResult, FailureKind};
use crate::host::text;
use crate::providers::exec::line_reader::ProgramLine;
use crate::providers::exec::protocol::{ClusterScope, Expect, ProviderCall};
use crate::providers::exec::{ProgramLimits, protocol};
use crate::telemetry::report_metrics;

/// A call on its way to the program.
pub(crate) struct PendingCall {
    pub(crate) call: ProviderCall,
    pub(crate) expect: Expect,
    /// When nobody waits for it any more.
    pub(crate) by: Instant,
    pub(crate) reply: oneshot::Sender<CommandResult>,
}

struct WaitingCall {
    expect: Expect,
    by: Instant,
    reply: oneshot::Sender<CommandResult>,
}

/// The calls of one run of the program.
pub(crate) struct PendingCalls<'a> {
    scope: &'a ClusterScope,
    limits: &'a ProgramLimits,
    waiting: BTreeMap<u64, WaitingCall>,
    next: u64,
    /// What is written next.
    pub(crate) out: Vec<u8>,
    /// Calls in a row that it left unanswered.
    silent: u32,
    /// Lines in a row that answer nothing.
    garbage: u32,
    /// Instances of others that the last listing had.
    others: usize,
}

/// An answer that says nothing about what has happened.
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
            // The first was the greeting.
            next: 1,
            out: Vec::new(),
            silent: 0,
            garbage: 0,
            others: 0,
        }
    }

    /// Whether another call may be written: one at a time, so that those who ask too much wait.
    pub(crate) fn is_free(&self) -> bool {
        self.out.is_empty() && self.waiting.len() < self.limits.open
    }

    /// Puts a call where it is written next.
    pub(crate) fn put(&mut self, ask: PendingCall, now: Instant) {
        if ask.reply.is_closed() {
            return;
        }
        let left = ask.by.saturating_duration_since(now).as_millis();
        let left = u64::try_from(left).unwrap_or(u64::MAX);
        let id = self.next;
        self.next += 1;
        match protocol::line(id, left, self.scope, &ask.call) {
            Ok(line) => self.out = line,
            Err(why) => {
                drop(ask.reply.send(unknown(&why)));
                return;
            }
        }
        let PendingCall {
            expect, by, reply, ..
        } = ask;
        self.waiting.insert(id, WaitingCall { expect, by, reply });
    }

    /// So many bytes of the line were written.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.out.drain(..bytes.min(self.out.len()));
    }

    /// When the first call has waited long enough.
    pub(crate) fn first_due(&self) -> Option<Instant> {
        self.waiting.values().map(|it| it.by).min()
    }

    /// Gives up on calls that have waited long enough, and on a program that answers none.
    pub(crate) fn expire(&mut self, now: Instant) -> Result<(), String> {
        let late = self.waiting.extract_if(.., |_, it| it.by <= now);
        for (_, it) in late {
            let limit = self.limits.call;
            drop(
                it.reply
                    .send(unknown(&format!("no answer within {limit:?}"))),
            );
            self.silent += 1;
        }
        if self.silent > 0 && !self.out.is_empty() {
            return Err("it does not read its stdin".to_owned());
        }
        match self.silent >= self.limits.silent {
            true => Err(format!("it left {} calls unanswered", self.silent)),
            false => Ok(()),
        }
    }

    /// Takes a line of the program's.
    pub(crate) fn take(&mut self, line: &ProgramLine) -> Result<(), String> {
        let line = match line {
            ProgramLine::Whole(line) => line,
            ProgramLine::TooLong => {
                let longest = self.limits.line;
                return self.pass_over(&format!("it is longer than {longest} bytes"));
            }
        };
        let it = match protocol::answered(line) {
            Err(why) => return self.pass_over(&why),
            Ok(id) => match self.waiting.remove(&id) {
                None => return self.pass_over(&format!("no call {id} waits for an answer")),
                Some(it) => it,
            },
        };
        match protocol::answer(line, &it.expect, self.scope) {
            Ok((answer, others)) => {
                drop(it.reply.send(answer));
                (self.silent, self.garbage) = (0, 0);
                if matches!(it.expect, Expect::List) {
                    self.tell_of(others);
                }
                Ok(())
            }
            Err(why) => {
                let text = format!("the program's answer makes no sense: {why}");
                drop(it.reply.send(unknown(&text)));
                self.pass_over(&why)
            }
        }
    }

    fn tell_of(&mut self, others: usize) {
        let cluster = &self.scope.cluster;
        if others > 0 && self.others == 0 {
            tracing::warn!(%cluster, others, "exec program lists instances of others; left out");
        }
        self.others = others;
    }

    fn pass_over(&mut self, why: &str) -> Result<(), String> {
        let cluster = &self.scope.cluster;
        report_metrics::program_rambled(cluster);
        self.garbage += 1;
        if self.garbage == 1 {
            let why = text::bounded(why);
            tracing::warn!(%cluster, why, "exec program writes a line that is no answer");
        }
        match self.garbage >= self.limits.garbage {
            true => Err(format!("{} lines in a row are no answers", self.garbage)),
            false => Ok(()),
        }
    }

    /// Answers all calls that still wait.
    pub(crate) fn close(self, why: &str) {
        for it in self.waiting.into_values() {
            drop(it.reply.send(unknown(why)));
        }
    }
}
