//! A provider that launches, terminates and lists instances through a program of the user.
//! Protocol: `docs/PROVIDERS.md`.
//!
//! ```text
//! execute ─► queue ─► supervisor ── a line of JSON per call ────► program
//!                         ▲ pending calls, by id                    │
//!                         └────── a line of JSON per response ──────┘
//! ```

// Reader with a line length limit.
pub(crate) mod line_reader;
// Why a program cannot be used.
mod error;
// Child process in its own process group.
mod process;
// Calls in flight and unexpected lines.
mod pending_calls;
// Starts, restarts and terminates the program.
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

use crate::engine::command::Command;
use crate::host::clock;
use crate::model::cluster::{Cluster, Exec};
use crate::model::id::NodeClassName;
use crate::provider::{CommandResult, FailureKind, Launch};
use crate::providers::exec::pending_calls::{PendingCall, unknown_outcome};
use crate::providers::exec::supervisor::ProcessSupervisor;
use crate::providers::exec_protocol::{ClusterScope, Expect, LaunchCall, ProviderCall};
use crate::providers::interface::{Provider, unsupported_result};

/// Capacity of the call queue.
const QUEUE: usize = 64;
/// How much longer a caller waits than the supervisor, because the supervisor returns a more
/// precise error.
const GRACE: Duration = Duration::from_secs(1);

/// Limits of a program, suited to real clouds.
#[derive(Clone, Debug)]
pub(crate) struct ProgramLimits {
    /// Timeout of one call.
    call_timeout: Duration,
    /// Timeout from the start of the program to its hello.
    hello_timeout: Duration,
    /// Initial and maximum delay before a restart.
    restart_delays: (Duration, Duration),
    /// Minimum duration of a successful run.
    min_successful_run: Duration,
    /// Time for the program to exit after its stdin is closed.
    exit_timeout: Duration,
    /// Consecutive calls without a response after which the program is killed.
    max_unanswered: u32,
    /// Consecutive invalid lines after which the program is killed.
    max_invalid_lines: u32,
    /// Maximum line length: some twenty thousand instances.
    max_line_bytes: usize,
    /// Maximum number of calls in flight, which is the number of concurrent commands of a cluster.
    max_in_flight: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            // The engine loop cancels a command after 90 s.
            call_timeout: Duration::from_secs(60),
            hello_timeout: Duration::from_secs(10),
            restart_delays: (Duration::from_secs(1), Duration::from_secs(60)),
            min_successful_run: Duration::from_secs(60),
            exit_timeout: Duration::from_secs(2),
            max_unanswered: 3,
            max_invalid_lines: 100,
            max_line_bytes: 16 << 20,
            max_in_flight: 1024,
        }
    }
}

/// The program as the provider of one cluster. The first call starts the program, and dropping this
/// value stops it.
pub(crate) struct ExecProvider {
    calls: mpsc::Sender<PendingCall>,
    /// User data by node class.
    user_data: BTreeMap<NodeClassName, String>,
    limits: ProgramLimits,
}

impl ExecProvider {
    /// Creates the provider of a cluster.
    pub(crate) fn new(exec: &Exec, cluster: &Cluster) -> Self {
        Self::with_limits(exec, cluster, ProgramLimits::default())
    }

    fn with_limits(exec: &Exec, cluster: &Cluster, limits: ProgramLimits) -> Self {
        let (calls, inbox) = mpsc::channel(QUEUE);
        let supervisor = ProcessSupervisor {
            exec: exec.clone(),
            scope: ClusterScope {
                installation: cluster.installation.clone(),
                cluster: cluster.name.clone(),
            },
            limits: limits.clone(),
            calls: inbox,
            first: None,
            rng: Rng::with_seed(clock::random_seed()),
        };
        tokio::spawn(supervisor.supervise());
        Self {
            calls,
            user_data: cluster
                .node_classes
                .iter()
                .map(|class| (class.name.clone(), class.user_data.clone()))
                .collect(),
            limits,
        }
    }

    async fn launch(&self, launch: Launch) -> CommandResult {
        let class = launch.claim.node_class.as_ref();
        let user_data = class.and_then(|name| self.user_data.get(name)).cloned();
        let expect = Expect::Launch(launch.claim.id.clone(), launch.offerings.clone());
        let call = LaunchCall::new(launch, user_data.unwrap_or_default());
        self.send_call(ProviderCall::Launch(Box::new(call)), expect).await
    }

    async fn send_call(&self, call: ProviderCall, expect: Expect) -> CommandResult {
        let (reply, answer) = oneshot::channel();
        let deadline = clock::monotonic_now() + self.limits.call_timeout;
        let pending = PendingCall { call, expect, deadline, reply };
        let gone = "the program is no longer needed";
        match timeout_at(deadline, self.calls.send(pending)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return unknown_outcome(gone),
            // The call was not sent, so nothing was changed.
            Err(_) => {
                return CommandResult::Failed {
                    kind: FailureKind::Throttled,
                    text: format!("{QUEUE} calls are already waiting for the program"),
                };
            }
        }
        match timeout_at(deadline + GRACE, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| unknown_outcome(gone)),
            Err(_) => {
                unknown_outcome(&format!("no response within {:?}", self.limits.call_timeout))
            }
        }
    }
}

impl Provider for ExecProvider {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(launch) => self.launch(*launch).await,
                Command::Terminate { claim, instance } => {
                    let (claim, instance) = (claim.0, instance.0);
                    let call = ProviderCall::Terminate { claim, instance };
                    self.send_call(call, Expect::Terminate).await
                }
                Command::ListInstances => self.send_call(ProviderCall::List {}, Expect::List).await,
                other => unsupported_result(&other),
            }
        }
        .boxed()
    }

    fn is_healthy(&self) -> bool {
        !self.calls.is_closed()
    }
}
