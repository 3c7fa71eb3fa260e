//! A program of the user's own that launches, ends and lists instances: any cloud, without a change
//! here. It must not know which cloud that is. The protocol: `docs/PROVIDERS.md`.
//!
//! ```text
//! execute ─► queue ─► keeper ── a line of JSON a call ──► program
//!                       ▲ desk: who waits for which id        │
//!                       └────── a line of JSON an answer ─────┘
//! ```

pub(crate) mod line_reader;
pub(crate) mod protocol;
mod process;
mod pending_calls;
mod supervisor;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout_at;

use crate::engine::command::{Command, CommandResult, FailureKind, Launch};
use crate::host::clock;
use crate::model::cluster::{Cluster, Exec};
use crate::model::id::NodeClassName;
use crate::providers::exec::pending_calls::{PendingCall, unknown};
use crate::providers::exec::protocol::{ClusterScope, Expect, LaunchCall, ProviderCall};
use crate::providers::exec::supervisor::ProcessSupervisor;
use crate::providers::{Provider, not_ours};

/// Calls that wait to be written.
const QUEUE: usize = 64;
/// How much later than the keeper a caller gives up: the keeper says better why.
const GRACE: Duration = Duration::from_secs(1);

/// What a program may take. Times are those of real clouds.
#[derive(Clone, Debug)]
pub(crate) struct ProgramLimits {
    /// For one call.
    call: Duration,
    /// From its start until it has said hello.
    hello: Duration,
    /// The wait before it is started again: at first, and at most.
    restart: (Duration, Duration),
    /// A run as long as this was no failed start.
    settled: Duration,
    /// For leaving by itself once its stdin has ended.
    leave: Duration,
    /// Unanswered calls in a row after which it is killed.
    silent: u32,
    /// Lines in a row after which it is killed that are no answers.
    garbage: u32,
    /// Bytes of a line: some twenty thousand instances.
    line: usize,
    /// Calls that wait for their answers, as many as a cluster has hands at most.
    open: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            // A command is given up after 90 s.
            call: Duration::from_secs(60),
            hello: Duration::from_secs(10),
            restart: (Duration::from_secs(1), Duration::from_secs(60)),
            settled: Duration::from_secs(60),
            leave: Duration::from_secs(2),
            silent: 3,
            garbage: 100,
            line: 16 << 20,
            open: 1024,
        }
    }
}

/// The program as one cluster's provider. It runs from the first call on, until this is dropped.
pub(crate) struct ExecProvider {
    asks: mpsc::Sender<PendingCall>,
    /// User data by node class.
    user_data: BTreeMap<NodeClassName, String>,
    limits: ProgramLimits,
}

impl ExecProvider {
    /// The program of a cluster.
    pub(crate) fn new(exec: &Exec, cluster: &Cluster) -> Self {
        Self::limited(exec, cluster, ProgramLimits::default())
    }

    fn limited(exec: &Exec, cluster: &Cluster, limits: ProgramLimits) -> Self {
        let (asks, inbox) = mpsc::channel(QUEUE);
        let keeper = ProcessSupervisor {
            exec: exec.clone(),
            scope: ClusterScope {
                installation: cluster.installation.clone(),
                cluster: cluster.name.clone(),
            },
            limits: limits.clone(),
            asks: inbox,
            first: None,
            rng: Rng::with_seed(clock::seed()),
        };
        tokio::spawn(keeper.keep());
        let classes = cluster.node_classes.iter();
        Self {
            asks,
            user_data: classes
                .map(|class| (class.name.clone(), class.user_data.clone()))
                .collect(),
            limits,
        }
    }

    fn launch(&self, launch: Launch) -> (ProviderCall, Expect) {
        let class = launch.claim.node_class.as_ref();
        let user_data = class.and_then(|name| self.user_data.get(name)).cloned();
        let expect = Expect::Launch(launch.claim.id.clone(), launch.offerings.clone());
        let call = LaunchCall::new(launch, user_data.unwrap_or_default());
        (ProviderCall::Launch(Box::new(call)), expect)
    }

    async fn ask(&self, (call, expect): (ProviderCall, Expect)) -> CommandResult {
        let (reply, answer) = oneshot::channel();
        let by = clock::monotonic() + self.limits.call;
        let ask = PendingCall {
            call,
            expect,
            by,
            reply,
        };
        let gone = "the program is needed no more";
        match timeout_at(by, self.asks.send(ask)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return unknown(gone),
            // It was not asked, so that nothing has happened.
            Err(_) => {
                return CommandResult::Failed {
                    kind: FailureKind::Throttled,
                    text: format!("{QUEUE} calls wait for the program already"),
                };
            }
        }
        match timeout_at(by + GRACE, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| unknown(gone)),
            Err(_) => unknown(&format!("no answer within {:?}", self.limits.call)),
        }
    }
}

impl Provider for ExecProvider {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            let call = match command {
                Command::Launch(launch) => self.launch(*launch),
                Command::Terminate { claim, instance } => {
                    let (claim, instance) = (claim.0, instance.0);
                    (
                        ProviderCall::Terminate { claim, instance },
                        Expect::Terminate,
                    )
                }
                Command::ListInstances => (ProviderCall::List {}, Expect::List),
                other => return not_ours(&other),
            };
            self.ask(call).await
        }
        .boxed()
    }

    fn is_well(&self) -> bool {
        !self.asks.is_closed()
    }
}
