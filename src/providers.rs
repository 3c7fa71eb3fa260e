//! What makes instances: the plug for providers.
//! It must not know which provider is plugged in.

pub(crate) mod wire_format;
pub(crate) mod simulated;
pub(crate) mod exec;
#[cfg(feature = "aws")]
pub(crate) mod aws;
#[cfg(test)]
pub(crate) mod conformance;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use tokio::sync::mpsc;

use crate::engine::command::{Command, CommandResult, FailureKind};
use crate::engine::event::Event;
use crate::model::cluster::Cluster;

/// Someone who launches, ends and lists instances of one cluster. `providers/conformance.rs` holds
/// every provider to what stands here.
///
/// - A command is answered once, whatever happens, in less than the 90 s after which the driver
///   gives it up. Where nobody knows what has happened, `FailureKind::Unknown` says so, and the
///   command comes again. What is no matter of a provider's is `FailureKind::Invalid`.
/// - `Launch` makes one instance for a claim, however often and by however many it is asked: the
///   claim's id is the token. The same claim with other parameters is `Invalid`, and so is one
///   whose instance has ended: it never gets another. All tags are on the instance from its first
///   moment on, and nothing else remembers the claim.
/// - `LaunchRefused` says that nothing was made, and why not: each offering that was tried, with a
///   typed reason. Of several offerings one that can be had is launched in the same call.
/// - `ListInstances` shows all instances with the tags of this installation and cluster and no
///   others, ended ones for a while too. It may lag for seconds.
/// - `Adopt` gives an instance the tags of a claim that was launched by another for the same
///   cluster and pool: whoever cannot tell that takes none over.
/// - `Terminate` ends one instance of this cluster; ending it again is no fault. `Gone` is said
///   only where it is certain that there is no such instance any more.
pub(crate) trait Provider: Send + Sync {
    /// Carries a command out.
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult>;

    /// The cluster is looked after, or is configured otherwise than it was. From here on the engine
    /// hears by `events` what there is to be launched, and what becomes of instances; there is none
    /// while another host leads the cluster. A provider that knows nothing beyond its answers has
    /// nothing to tell.
    fn attend(
        &self,
        _cluster: Arc<Cluster>,
        _events: Option<mpsc::Sender<Event>>,
    ) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    /// Whether it goes on by itself. Where what answers for it has panicked nothing would ever come
    /// of it: its cluster is begun anew, with another.
    fn is_well(&self) -> bool {
        true
    }

    /// By how much the clock of this host is ahead of the provider's; none where its answers do not
    /// tell.
    fn clock_ahead(&self) -> Option<SignedDuration> {
        None
    }
}

/// The answer to a command that no provider can carry out.
pub(crate) fn not_ours(command: &Command) -> CommandResult {
    CommandResult::Failed {
        kind: FailureKind::Invalid,
        text: format!("{} is no command for a provider", command.name()),
    }
}

/// The provider of a cluster that is only observed: it has no instances and makes none.
pub(crate) struct NoProvider;

impl Provider for NoProvider {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        let answer = match command {
            Command::ListInstances => CommandResult::Instances(Vec::new()),
            other => not_ours(&other),
        };
        std::future::ready(answer).boxed()
    }
}
