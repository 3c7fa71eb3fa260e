//! Keeps a program running: starts it when it is first asked, carries lines to it and from it, and
//! starts it anew when it ends or answers nothing. It must not know what the lines mean.

use std::time::Duration;

use fastrand::Rng;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until, timeout};

use crate::host::{clock, text};
use crate::model::cluster::Exec;
use crate::providers::exec::line_reader::ProgramLine;
use crate::providers::exec::pending_calls::{PendingCall, PendingCalls, unknown};
use crate::providers::exec::process::Child;
use crate::providers::exec::protocol::{ClusterScope, Hello, PROTOCOL, ProviderCall};
use crate::providers::exec::{ProgramLimits, protocol};
use crate::telemetry::report_metrics;

/// Doublings of the wait after which it grows no more in any case.
const DOUBLINGS: u32 = 16;

/// Why a run of the program is over.
enum RunEnd {
    /// Nobody will ask it anything.
    Unwanted,
    Fault(String),
}

impl From<String> for RunEnd {
    fn from(why: String) -> Self {
        Self::Fault(why)
    }
}

/// The one holder of the program.
pub(crate) struct ProcessSupervisor {
    pub(crate) exec: Exec,
    pub(crate) scope: ClusterScope,
    pub(crate) limits: ProgramLimits,
    pub(crate) asks: mpsc::Receiver<PendingCall>,
    /// For which the program was started.
    pub(crate) first: Option<PendingCall>,
    pub(crate) rng: Rng,
}

impl ProcessSupervisor {
    /// Runs until nobody asks any more.
    pub(crate) async fn keep(mut self) {
        // A configuration that is only checked starts nothing.
        self.first = self.asks.recv().await;
        let mut ends = 0;
        while self.first.is_some() || !self.asks.is_closed() {
            let began = clock::monotonic();
            let RunEnd::Fault(why) = self.run().await else {
                return;
            };
            if began.elapsed() >= self.limits.settled {
                ends = 0;
            }
            let wait = self.wait(ends);
            ends += 1;
            let (cluster, why) = (&self.scope.cluster, text::bounded(&why));
            report_metrics::program_ended(cluster);
            tracing::warn!(%cluster, why, again_in = ?wait, "exec program has ended");
            if !self.refuse(wait, &why).await {
                return;
            }
        }
    }

    /// Time until the next start: longer from one end to the next, and never quite the same.
    fn wait(&mut self, ends: u32) -> Duration {
        let (least, most) = self.limits.restart;
        let wait = least.saturating_mul(1 << ends.min(DOUBLINGS)).min(most);
        wait.mul_f64(0.5 + self.rng.f64() / 2.0)
    }

    /// Answers for so long what the program is asked; false when nobody asks any more.
    async fn refuse(&mut self, wait: Duration, why: &str) -> bool {
        let answer = || unknown(&format!("the program does not run: {why}"));
        if let Some(first) = self.first.take() {
            drop(first.reply.send(answer()));
        }
        let over = sleep(wait);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return true,
                ask = self.asks.recv() => match ask {
                    Some(ask) => drop(ask.reply.send(answer())),
                    None => return false,
                },
            }
        }
    }

    /// One run of the program, from start to end.
    async fn run(&mut self) -> RunEnd {
        let (cluster, longest) = (&self.scope.cluster, self.limits.line);
        let mut child = match Child::start(&self.exec, cluster, longest) {
            Ok(child) => child,
            Err(why) => return RunEnd::Fault(why),
        };
        let greeted = timeout(self.limits.hello, greet(&mut child, &self.scope)).await;
        let limit = self.limits.hello;
        let mut desk = PendingCalls::new(&self.scope, &self.limits);
        let end = match greeted {
            Ok(Ok(hello)) => {
                let name = text::bounded(&hello.name);
                tracing::info!(%cluster, name, "exec program runs");
                if let Some(first) = self.first.take() {
                    desk.put(first, clock::monotonic());
                }
                carry(&mut desk, &mut self.asks, &mut child).await
            }
            Ok(Err(why)) => RunEnd::Fault(why),
            Err(_) => RunEnd::Fault(format!("it says no hello within {limit:?}")),
        };
        let status = child.end(self.limits.leave).await;
        let end = match (end, status) {
            (RunEnd::Fault(why), Some(status)) => RunEnd::Fault(format!("{why} ({status})")),
            (end, _) => end,
        };
        match &end {
            RunEnd::Fault(why) => desk.close(&format!("the program has ended: {why}")),
            RunEnd::Unwanted => desk.close("the program is needed no more"),
        }
        end
    }
}

/// Carries lines both ways until the program ends, or is to.
async fn carry(
    desk: &mut PendingCalls<'_>,
    asks: &mut mpsc::Receiver<PendingCall>,
    child: &mut Child,
) -> RunEnd {
    loop {
        let due = desk.first_due();
        let step = tokio::select! {
            biased;
            () = async { sleep_until(due.unwrap_or_else(clock::monotonic)).await },
                if due.is_some() => desk.expire(clock::monotonic()),
            line = child.lines.next() => match line {
                Ok(Some(line)) => desk.take(&line),
                Ok(None) => Err("it closed its stdout".to_owned()),
                Err(error) => Err(format!("read its stdout: {error}")),
            },
            wrote = child.stdin.write(&desk.out), if !desk.out.is_empty() => match wrote {
                Ok(bytes) => {
                    desk.wrote(bytes);
                    Ok(())
                }
                Err(error) => Err(format!("it reads no more: {error}")),
            },
            ask = asks.recv(), if desk.is_free() => match ask {
                Some(ask) => {
                    desk.put(ask, clock::monotonic());
                    Ok(())
                }
                None => return RunEnd::Unwanted,
            },
            _ = child.process.wait() => Err("it ended".to_owned()),
        };
        if let Err(why) = step {
            return RunEnd::Fault(why);
        }
    }
}

/// The first line and its answer.
async fn greet(child: &mut Child, scope: &ClusterScope) -> Result<Hello, String> {
    let call = ProviderCall::Hello {
        protocols: [PROTOCOL],
    };
    let line = protocol::line(0, 0, scope, &call)?;
    // Where it has closed that, its stdout tells more.
    drop(child.stdin.write_all(&line).await);
    match child.lines.next().await {
        Ok(Some(ProgramLine::Whole(line))) => {
            protocol::hello(&line).map_err(|why| format!("its first line is no hello: {why}"))
        }
        Ok(Some(ProgramLine::TooLong)) => {
            Err("its first line is too long to be a hello".to_owned())
        }
        Ok(None) => Err("it closed its stdout before it said hello".to_owned()),
        Err(error) => Err(format!("read its stdout: {error}")),
    }
}
