//! The interface of providers, which launch instances.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use tokio::sync::mpsc;

use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::model::cluster::Cluster;
use crate::provider::{CommandResult, FailureKind};

/// Launches, terminates and lists the instances of one cluster. `providers/conformance.rs` tests
/// every provider for the rules below.
///
/// - Each command has exactly one result, in less than the 90 s after which the engine loop cancels
///   it. If the outcome is not known, the result is `FailureKind::Unknown`, and the command is
///   retried. A command that is not for providers returns `FailureKind::Invalid`.
/// - `Launch` is idempotent: it creates one instance per claim, also with concurrent calls. The
///   claim id is the token. The same claim with different parameters is `Invalid`, and so is a
///   claim whose instance has terminated: it never gets a second instance. The instance has all
///   tags from its creation, and no other storage records the claim.
/// - `LaunchRefused` means that no instance was created. It contains a typed reason for each tried
///   offering. If one of several offerings has capacity, the same call launches it.
/// - `ListInstances` returns exactly the instances with the tags of this installation and cluster,
///   including terminated instances for a while. It may lag for seconds.
/// - `Adopt` sets the tags of a claim on an instance that another autoscaler launched for the same
///   cluster and pool. A provider that cannot verify this adopts nothing.
/// - `Terminate` terminates one instance of this cluster and is idempotent. `Gone` is returned only
///   if the instance certainly does not exist.
pub(crate) trait Provider: Send + Sync {
    /// Executes a command.
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult>;

    /// Registers the cluster, or its changed configuration. The provider sends available offerings
    /// and instance events to `events`, which is `None` while another host is the leader. A
    /// provider without such data sends nothing.
    fn register_cluster(
        &self,
        _cluster: Arc<Cluster>,
        _events: Option<mpsc::Sender<Event>>,
    ) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    /// Returns whether the provider works. If its task has panicked, it never responds again, and
    /// its cluster is restarted with a new provider.
    fn is_healthy(&self) -> bool {
        true
    }

    /// Returns how many launches may be executed at the same time for each concurrent call: more
    /// than one if the provider gathers launches into calls.
    fn launches_per_call(&self) -> usize {
        1
    }

    /// Returns by how much the clock of this host is ahead of the provider's clock. `None` if the
    /// provider's responses do not show the time.
    fn clock_ahead(&self) -> Option<SignedDuration> {
        None
    }
}

/// The result of a command that is not for providers.
pub(crate) fn unsupported_result(command: &Command) -> CommandResult {
    CommandResult::Failed {
        kind: FailureKind::Invalid,
        text: format!("{} is not a provider command", command.name()),
    }
}

/// The provider of a cluster in observe mode without instances.
pub(crate) struct NoProvider;

impl Provider for NoProvider {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        let answer = match command {
            Command::ListInstances => CommandResult::Instances(Vec::new()),
            other => unsupported_result(&other),
        };
        std::future::ready(answer).boxed()
    }
}
