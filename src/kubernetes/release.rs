//! Lets the Nodes of a cluster go: what is taken off which, and whether it was.
//! It must not know what is taken off, nor who asks for it.

use crate::engine::command::{Command, CommandResult, FailureKind, NodePatch};
use crate::engine::release::release;
use crate::kubernetes::client::Connection;
use crate::kubernetes::commands;
use crate::kubernetes::list::{ListError, list};
use crate::kubernetes::watched_items::Seen;
use crate::kubernetes_convert::Convert;
use crate::kubernetes_convert::api_types::Node as Json;
use crate::model::id::NodeName;
use crate::model::watched_object::WatchedObject;
use crate::outbound::fence;

/// A Node that has changed meanwhile is looked at again so often.
const ROUNDS: usize = 5;

/// What became of a Node: what was taken off it, and why not, where it was not.
pub(crate) struct Released {
    pub(crate) node: NodeName,
    pub(crate) finalizer: bool,
    pub(crate) taints: bool,
    pub(crate) fault: Option<String>,
}

/// Lets go of all Nodes of an installation, or only says of which it would.
pub(crate) async fn release_all(
    connection: &Connection,
    installation: &str,
    dry_run: bool,
) -> Result<Vec<Released>, ListError> {
    let mut done: Vec<Released> = Vec::new();
    for round in 1..=ROUNDS {
        let mut again = false;
        for patch in patches(connection, installation).await? {
            let mut own = Released {
                node: patch.node.clone(),
                finalizer: patch.finalizers.is_some(),
                taints: patch.taints.is_some(),
                fault: None,
            };
            if !dry_run {
                let patching = commands::execute(connection, Command::PatchNode(patch));
                match fence::without(patching).await {
                    CommandResult::Failed {
                        kind: FailureKind::Conflict,
                        ..
                    } if round < ROUNDS => {
                        again = true;
                        continue;
                    }
                    CommandResult::Failed { kind, text } if kind != FailureKind::Gone => {
                        own.fault = Some(text);
                    }
                    _ => {}
                }
            }
            done.push(own);
        }
        if !again {
            break;
        }
    }
    Ok(done)
}

async fn patches(connection: &Connection, installation: &str) -> Result<Vec<NodePatch>, ListError> {
    let api = kube::Api::<Seen<Json>>::all(connection.client.clone());
    let nodes = list(&api, None).await?.into_iter();
    let patch = |seen: Seen<Json>| match seen.object.convert() {
        WatchedObject::Node(node) => release(&node, installation),
        _ => None,
    };
    Ok(nodes.filter_map(patch).collect())
}
