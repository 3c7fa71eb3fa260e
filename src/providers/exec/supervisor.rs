//! Supervises the program: starts it on the first call, transfers lines, and restarts it when it
//! exits or does not respond.

use std::time::Duration;

use fastrand::Rng;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until, timeout};

use crate::host::{clock, text};
use crate::model::cluster::Exec;
use crate::providers::exec::ProgramLimits;
use crate::providers::exec::error::ProgramError;
use crate::providers::exec::line_reader::ProgramLine;
use crate::providers::exec::pending_calls::{PendingCall, PendingCalls, unknown_outcome};
use crate::providers::exec::process::Child;
use crate::providers::exec_protocol::{self, ClusterScope, Hello, PROTOCOL, ProviderCall};
use crate::telemetry::report_metrics;

/// Maximum number of doublings of the restart delay.
const DOUBLINGS: u32 = 16;

/// Why a run of the program ended.
enum RunEnd {
    /// No more calls will be made.
    Unwanted,
    Fault(String),
}

impl From<ProgramError> for RunEnd {
    fn from(error: ProgramError) -> Self {
        Self::Fault(error.to_string())
    }
}

/// The supervisor of the program.
pub(crate) struct ProcessSupervisor {
    pub(crate) exec: Exec,
    pub(crate) scope: ClusterScope,
    pub(crate) limits: ProgramLimits,
    pub(crate) calls: mpsc::Receiver<PendingCall>,
    /// The call that started the program.
    pub(crate) first: Option<PendingCall>,
    pub(crate) rng: Rng,
}

impl ProcessSupervisor {
    /// Runs until all callers are dropped.
    pub(crate) async fn supervise(mut self) {
        // The program starts only with the first call, so checking a configuration starts no
        // program.
        self.first = self.calls.recv().await;
        let mut failures = 0;
        while self.first.is_some() || !self.calls.is_closed() {
            let started = clock::monotonic_now();
            let RunEnd::Fault(why) = self.run_program().await else {
                return;
            };
            if started.elapsed() >= self.limits.min_successful_run {
                failures = 0;
            }
            let wait = self.restart_delay(failures);
            failures += 1;
            let (cluster, why) = (&self.scope.cluster, text::bounded_line(&why));
            report_metrics::count_program_exit(cluster);
            tracing::warn!(%cluster, why, again_in = ?wait, "exec program exited");
            if !self.fail_calls(wait, &why).await {
                return;
            }
        }
    }

    /// Delay until the next start: exponential backoff with jitter.
    fn restart_delay(&mut self, failures: u32) -> Duration {
        let (initial, maximum) = self.limits.restart_delays;
        let wait = initial.saturating_mul(1 << failures.min(DOUBLINGS)).min(maximum);
        wait.mul_f64(0.5 + self.rng.f64() / 2.0)
    }

    /// Returns an error for each call during the delay. Returns false if all callers are dropped.
    async fn fail_calls(&mut self, wait: Duration, why: &str) -> bool {
        let result = unknown_outcome(&format!("the program is not running: {why}"));
        if let Some(first) = self.first.take() {
            drop(first.reply.send(result.clone()));
        }
        let restart = sleep(wait);
        tokio::pin!(restart);
        loop {
            tokio::select! {
                () = &mut restart => return true,
                call = self.calls.recv() => match call {
                    Some(call) => drop(call.reply.send(result.clone())),
                    None => return false,
                },
            }
        }
    }

    /// One run of the program, from start to end.
    async fn run_program(&mut self) -> RunEnd {
        let (cluster, max_line_bytes) = (&self.scope.cluster, self.limits.max_line_bytes);
        let mut child = match Child::start(&self.exec, cluster, max_line_bytes) {
            Ok(child) => child,
            Err(error) => return error.into(),
        };
        let greeted =
            timeout(self.limits.hello_timeout, exchange_hello(&mut child, &self.scope)).await;
        let mut pending = PendingCalls::new(&self.scope, &self.limits);
        let end = match greeted {
            Ok(Ok(hello)) => {
                let name = text::bounded_line(&hello.name);
                tracing::info!(%cluster, name, "started exec program");
                if let Some(first) = self.first.take() {
                    pending.queue_call(first, clock::monotonic_now());
                }
                transfer_lines(&mut pending, &mut self.calls, &mut child).await
            }
            Ok(Err(error)) => error.into(),
            Err(_) => ProgramError::HelloTimeout(self.limits.hello_timeout).into(),
        };
        let status = child.stop(self.limits.exit_timeout).await;
        let end = match (end, status) {
            (RunEnd::Fault(why), Some(status)) => RunEnd::Fault(format!("{why} ({status})")),
            (end, _) => end,
        };
        match &end {
            RunEnd::Fault(why) => pending.fail_all(&format!("the program exited: {why}")),
            RunEnd::Unwanted => pending.fail_all("the program is no longer needed"),
        }
        end
    }
}

/// Transfers lines until the program exits or must stop.
async fn transfer_lines(
    pending: &mut PendingCalls<'_>,
    calls: &mut mpsc::Receiver<PendingCall>,
    child: &mut Child,
) -> RunEnd {
    loop {
        let due = pending.next_deadline();
        let step = tokio::select! {
            biased;
            () = async { sleep_until(due.unwrap_or_else(clock::monotonic_now)).await },
                if due.is_some() => pending.fail_overdue(clock::monotonic_now()),
            line = child.lines.next_line() => match line {
                Ok(Some(line)) => pending.on_line(&line),
                Ok(None) => Err(ProgramError::Closed),
                Err(error) => Err(ProgramError::Read(error)),
            },
            wrote = child.stdin.write(&pending.unwritten),
                if !pending.unwritten.is_empty() => match wrote {
                Ok(bytes) => {
                    pending.on_written(bytes);
                    Ok(())
                }
                Err(error) => Err(ProgramError::Write(error)),
            },
            call = calls.recv(), if pending.is_free() => match call {
                Some(call) => {
                    pending.queue_call(call, clock::monotonic_now());
                    Ok(())
                }
                None => return RunEnd::Unwanted,
            },
            _ = child.process.wait() => Err(ProgramError::Exited),
        };
        if let Err(error) = step {
            return error.into();
        }
    }
}

/// Exchanges the hello.
async fn exchange_hello(child: &mut Child, scope: &ClusterScope) -> Result<Hello, ProgramError> {
    let call = ProviderCall::Hello { protocols: [PROTOCOL] };
    let line = exec_protocol::request_line(0, 0, scope, &call)?;
    // If the program has closed its stdin, reading its stdout returns the error.
    drop(child.stdin.write_all(&line).await);
    match child.lines.next_line().await {
        Ok(Some(ProgramLine::Whole(line))) => {
            exec_protocol::parse_hello(&line).map_err(ProgramError::InvalidHello)
        }
        Ok(Some(ProgramLine::TooLong)) => Err(ProgramError::HelloTooLong),
        Ok(None) => Err(ProgramError::ClosedBeforeHello),
        Err(error) => Err(ProgramError::Read(error)),
    }
}
