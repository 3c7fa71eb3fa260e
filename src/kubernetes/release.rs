//! Releases the Nodes of a cluster: removes taints, labels and finalizers, and returns the result.

use crate::engine::command::{Command, NodePatch};
use crate::engine::release::release;
use crate::kubernetes::client::Connection;
use crate::kubernetes::commands;
use crate::kubernetes::list::{ListError, list_all};
use crate::kubernetes::watched_items::Seen;
use crate::kubernetes_convert::Convert;
use crate::kubernetes_convert::api_types::Node as Json;
use crate::model::id::NodeName;
use crate::model::watched_object::WatchedObject;
use crate::outbound::fence;
use crate::provider::{CommandResult, FailureKind};

/// Number of retries if a Node has changed meanwhile.
const ROUNDS: usize = 5;

/// The result for a Node: what was removed, or the error.
pub(crate) struct Released {
    pub(crate) node: NodeName,
    pub(crate) finalizer: bool,
    pub(crate) taints: bool,
    pub(crate) fault: Option<String>,
}

/// Releases all Nodes of an installation, or only returns what a release would remove.
pub(crate) async fn release_all(
    connection: &Connection,
    installation: &str,
    dry_run: bool,
) -> Result<Vec<Released>, ListError> {
    let mut done: Vec<Released> = Vec::new();
    for round in 1..=ROUNDS {
        let mut again = false;
        for patch in release_patches(connection, installation).await? {
            let mut released = Released {
                node: patch.node.clone(),
                finalizer: patch.finalizers.is_some(),
                taints: patch.taints.is_some(),
                fault: None,
            };
            if !dry_run {
                let patching = commands::execute(connection, Command::PatchNode(patch));
                match fence::run_unfenced(patching).await {
                    CommandResult::Failed { kind: FailureKind::Conflict, .. } if round < ROUNDS => {
                        again = true;
                        continue;
                    }
                    CommandResult::Failed { kind, text } if kind != FailureKind::Gone => {
                        released.fault = Some(text);
                    }
                    _ => {}
                }
            }
            done.push(released);
        }
        if !again {
            break;
        }
    }
    Ok(done)
}

async fn release_patches(
    connection: &Connection,
    installation: &str,
) -> Result<Vec<NodePatch>, ListError> {
    let api = kube::Api::<Seen<Json>>::all(connection.client.clone());
    let nodes = list_all(&api, None).await?.into_iter();
    Ok(nodes
        .filter_map(|item| match item.object.convert() {
            WatchedObject::Node(node) => release(&node, installation),
            _ => None,
        })
        .collect())
}
