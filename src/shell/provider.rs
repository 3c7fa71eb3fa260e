//! What makes instances: the plug for providers.
//! It must not know which provider is plugged in.

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::engine::command::{Answer, Command, FailureKind};

/// Someone who launches, ends and lists instances. Each call is limited in time by the provider,
/// and answered whatever happens; what is no matter of a provider's is answered as invalid.
pub(crate) trait Provider: Send + Sync {
    /// Carries a command out.
    fn execute(&self, command: Command) -> BoxFuture<'_, Answer>;
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
