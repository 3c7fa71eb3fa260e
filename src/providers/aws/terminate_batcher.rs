//! Batches terminations of all clusters of an account and region into one call.
//!
//! Source: spec/aws.md §5.10.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::ec2::errors::ErrorClass;
use crate::model::id::InstanceId;
use crate::model::instance::InstanceState;
use crate::outbound::fence::{self, Fence, NotLeader};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::instances;

/// Batch window. A drain often terminates several nodes at the same time.
const WAIT: Duration = Duration::from_millis(100);
/// Maximum number of instances per call. EC2 allows 1,000.
const MOST: usize = 500;

/// State of an instance after the request.
type Ended = Result<InstanceState, AwsError>;

/// A termination that waits for its batch.
#[derive(Debug)]
struct WaitingEnd {
    instance: InstanceId,
    fences: Arc<[Fence]>,
    /// The caller that waits for the result.
    reply: oneshot::Sender<Ended>,
}

/// Pending terminations.
#[derive(Debug, Default)]
pub(crate) struct TerminateBatcher(Arc<Mutex<Vec<WaitingEnd>>>);

impl TerminateBatcher {
    /// Terminates an instance and returns its new state. A separate task makes the call, even if
    /// the caller is cancelled, but only while the fences of the caller are open.
    pub(crate) async fn terminate_instance(
        &self,
        account: &Arc<AwsClients>,
        instance: &InstanceId,
    ) -> Ended {
        let Some(fences) = fence::task_fences() else {
            return Err(AwsError::not_sent("TerminateInstances", NotLeader::Unasked));
        };
        let (reply, answer) = oneshot::channel();
        let first = {
            let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(WaitingEnd { instance: instance.clone(), fences, reply });
            waiting.len() == 1
        };
        if first {
            let (waiting, account) = (self.0.clone(), account.clone());
            tokio::spawn(async move {
                sleep(WAIT).await;
                // Meanwhile further terminations join the batch.
                account.buckets.terminate.wait_for_token().await;
                let due =
                    std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
                terminate_due(&account, due).await;
            });
        }
        answer.await.unwrap_or_else(|_| {
            let operation = "TerminateInstances";
            Err(AwsError::without_response(operation, "the call was cancelled"))
        })
    }
}

async fn terminate_due(account: &AwsClients, mut due: Vec<WaitingEnd>) {
    // Drop requests of clusters that this host no longer leads. The caller gets an error, and
    // retries if this host leads the cluster again.
    due.retain(|waiting| fence::are_open(&waiting.fences));
    while !due.is_empty() {
        let later = due.split_off(due.len().min(MOST));
        terminate_batch(account, due).await;
        due = later;
        if !due.is_empty() {
            account.buckets.terminate.wait_for_token().await;
        }
    }
}

/// Terminates a batch of instances with one call. Instances without a result are terminated
/// individually, so that one invalid instance does not affect others, except after throttling or
/// without a response.
async fn terminate_batch(account: &AwsClients, batch: Vec<WaitingEnd>) {
    let ids: Vec<InstanceId> = batch.iter().map(|it| it.instance.clone()).collect();
    let fences: Vec<Fence> = batch.iter().flat_map(|it| it.fences.iter().cloned()).collect();
    let call = fence::run_fenced(fences, instances::terminate_instances(account, &ids));
    let (states, fault) = match call.await {
        Ok(Ok(states)) => (states, None),
        // If this host must not send one of the terminations any more, make individual calls.
        Ok(Err(_)) if !batch.iter().all(|it| fence::are_open(&it.fences)) => {
            (BTreeMap::new(), None)
        }
        Err(_) => (BTreeMap::new(), None),
        Ok(Err(fault)) => (BTreeMap::new(), Some(fault)),
    };
    let whole = fault.filter(|fault| {
        let sort = fault.to_failure("ec2").sort;
        batch.len() == 1 || matches!(sort, ErrorClass::Throttled | ErrorClass::Fault)
    });
    let replies = batch.into_iter().map(|waiting| {
        let (known, whole) = (states.get(&waiting.instance).copied(), whole.clone());
        async move {
            let ended = match (known, whole) {
                (Some(state), _) => Ok(state),
                (None, Some(fault)) => Err(fault),
                (None, None) => {
                    let single = terminate_single(account, &waiting);
                    let ended = fence::run_fenced(waiting.fences.clone(), single).await;
                    ended.unwrap_or_else(|fenced| {
                        Err(AwsError::not_sent("TerminateInstances", fenced))
                    })
                }
            };
            // The caller may have been cancelled.
            drop(waiting.reply.send(ended));
        }
    });
    join_all(replies).await;
}

async fn terminate_single(account: &AwsClients, waiting: &WaitingEnd) -> Ended {
    // A termination whose time is over takes no token, and others need not wait for it.
    if !fence::are_open(&waiting.fences) {
        return Err(AwsError::not_sent("TerminateInstances", NotLeader::Late));
    }
    account.buckets.terminate.wait_for_token().await;
    let id = &waiting.instance;
    let states = instances::terminate_instances(account, std::slice::from_ref(id)).await?;
    // EC2 accepted the call but did not return the state of the instance.
    Ok(states.get(id).copied().unwrap_or(InstanceState::ShuttingDown))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use aws_sdk_ec2::types::{InstanceType, ResourceType};
    use futures::future::join_all;
    use serde_json::json;

    use super::TerminateBatcher;
    use crate::host::clock::Moment;
    use crate::model::claim::TAG_INSTALLATION;
    use crate::model::id::InstanceId;
    use crate::model::instance::InstanceState;
    use crate::outbound::fence::{self, Fence};
    use crate::providers::aws::clients::{AccountKey, AwsClients};
    use crate::providers::aws::launch_templates::tag_specification;
    use crate::providers::aws::tests::moto::Aws;

    const HOUR: Duration = Duration::from_hours(1);

    /// Launches instances, and terminates them together with an unknown one. Checks the number of
    /// calls and the result of each.
    async fn check(
        aws: &mut Aws,
        count: i32,
        unknown: bool,
        fault: Option<&str>,
        expect: (usize, &[bool]),
    ) {
        let key = AccountKey::from_cluster(&aws.cluster("here", "prod"));
        let account = Arc::new(AwsClients::from_config(key, aws.config().await));
        let call = account.ec2.run_instances().image_id("ami-0123456789abcdef0");
        let call = call.instance_type(InstanceType::from("m5.large"));
        let tags = [(TAG_INSTALLATION.to_owned(), "here".to_owned())].into();
        let call = call.tag_specifications(tag_specification(ResourceType::Instance, &tags));
        let made = call.min_count(count).max_count(count).send();
        let made = fence::run_unfenced(made).await;
        let made = made.expect("instances").instances.unwrap_or_default();
        let ids = made.iter().filter_map(|instance| instance.instance_id());
        let mut ids: Vec<InstanceId> = ids.map(InstanceId::from).collect();
        if unknown {
            ids.push("i-0123456789abcdef0".into());
        }
        aws.send_command(&json!({"do": "forget"}));
        if let Some(kind) = fault {
            aws.send_command(&json!({
                "do": "fault", "action": "TerminateInstances", "kind": kind, "times": null,
            }));
        }
        let batcher = TerminateBatcher::default();
        let all =
            ids.iter().map(|id| fence::run_unfenced(batcher.terminate_instance(&account, id)));
        let ended = join_all(all).await;
        aws.send_command(&json!({"do": "clear"}));
        let calls = aws.send_command(&json!({"do": "calls"}));
        let calls = calls["calls"].as_array().map_or(0, Vec::len);
        let succeeded: Vec<bool> = ended.iter().map(Result::is_ok).collect();
        assert_eq!((calls, &*succeeded), expect, "{ended:?}");
        for state in ended.into_iter().flatten() {
            assert_eq!(state, InstanceState::ShuttingDown);
        }
        let states = aws.send_command(&json!({"do": "instances"}));
        let live = states["instances"].as_array().map(|all| {
            let states = all.iter().map(|instance| instance["state"].as_str());
            let live = states.filter(|state| matches!(state, Some("running" | "pending")));
            live.count()
        });
        let expected_live = if fault.is_some() { ids.len() } else { 0 };
        assert_eq!(live, Some(expected_live));
    }

    #[tokio::test]
    async fn simultaneous_terminations_are_batched_with_separate_results() {
        let test = "providers::aws::terminate_batcher::tests::\
                    simultaneous_terminations_are_batched_with_separate_results";
        let Some(mut aws) = Aws::start_or_skip(test) else {
            return;
        };
        check(&mut aws, 5, false, None, (1, &[true; 5])).await;
        check(&mut aws, 1, false, None, (1, &[true])).await;
        // EC2 terminates none of a batch with an unknown ID. Each instance is then terminated in a
        // separate call.
        let one = [true, true, true, false];
        check(&mut aws, 3, true, None, (1 + 4, &one)).await;
        // Commands that are too old, of a different term or without a term are not sent.
        let account = Arc::new(AwsClients::from_config(
            AccountKey::from_cluster(&aws.cluster("here", "prod")),
            aws.config().await,
        ));
        let fence = Fence::default();
        let past = fence.of_term(fence.begin_term("term/one.1.1"));
        fence.begin_term("term/one.1.1");
        fence.open(Moment::now(), HOUR);
        let late = fence.of_this_term().with_deadline(Moment::now());
        let id = InstanceId::from("i-0123456789abcdef0");
        aws.send_command(&json!({"do": "forget"}));
        for fence in [past, late] {
            let ended = fence::run_fenced(
                [fence],
                TerminateBatcher::default().terminate_instance(&account, &id),
            )
            .await;
            assert!(!matches!(ended, Ok(Ok(_))), "{ended:?}");
        }
        assert!(TerminateBatcher::default().terminate_instance(&account, &id).await.is_err());
        let calls = aws.send_command(&json!({"do": "calls"}));
        assert_eq!(calls["calls"], json!([]));
        // Three attempts of one call, not of each.
        check(&mut aws, 3, false, Some("throttle"), (3, &[false; 3])).await;
    }
}
