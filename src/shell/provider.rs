//! What makes instances: the plug for providers.
//! It must not know which provider is plugged in.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use crate::engine::command::{Answer, Command, FailureKind};
use crate::engine::event::Event;
use crate::model::cluster::Cluster;

/// Someone who launches, ends and lists instances. Each call is limited in time by the provider,
/// and answered whatever happens; what is no matter of a provider's is answered as invalid.
pub(crate) trait Provider: Send + Sync {
    /// Carries a command out.
    fn execute(&self, command: Command) -> BoxFuture<'_, Answer>;

    /// The cluster is driven, or is configured otherwise than it was. From here on the engine hears
    /// by `events` what there is to be launched, and what becomes of instances; a provider that
    /// knows nothing beyond its answers has nothing to tell.
    fn attend(&self, _cluster: Arc<Cluster>, _events: mpsc::Sender<Event>) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// The answer to a command that no provider can carry out.
pub(crate) fn not_ours(command: &Command) -> Answer {
    Answer::Failed {
        kind: FailureKind::Invalid,
        text: format!("{} is no command for a provider", command.name()),
    }
}

/// The provider of a cluster that is only observed: it has no instances and makes none.
pub(crate) struct Nobody;

impl Provider for Nobody {
    fn execute(&self, command: Command) -> BoxFuture<'_, Answer> {
        let answer = match command {
            Command::ListInstances => Answer::Instances(Vec::new()),
            other => not_ours(&other),
        };
        std::future::ready(answer).boxed()
    }
}
