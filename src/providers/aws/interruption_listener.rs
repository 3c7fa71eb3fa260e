//! Reads interruption messages from the queue of an account and region and sends them to the
//! engines of the affected clusters.
//!
//! Hosts of one installation share the queue. A message for a cluster that another host leads is
//! returned immediately, unless a Lease of this host has expired. A message about an instance
//! without the tag of the installation is deleted by any host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_sqs::types::Message as Received;
use metrics::counter;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::ec2::interruption_message::{self, InterruptionMessage, Message};
use crate::engine::event::Event;
use crate::host::clock;
use crate::model::claim::TAG_CLUSTER;
use crate::model::id::{ClusterName, InstanceId};
use crate::outbound::fence::{self, Fence};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::instances::Lister;
use crate::providers::aws::sqs;
use crate::telemetry::metric_definitions::NOTICES;

/// Delay after a failed read, or after a message for another host.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// Time for an engine to accept an event. Otherwise the message is delivered again.
const TAKE: Duration = Duration::from_secs(5);
/// Delay before a message is deleted. By then the engine has tainted the node, even with a slow API
/// server. If the host stops earlier, another host receives the message. The delay is well below
/// the visibility timeout.
const KEEP: Duration = Duration::from_secs(10);
/// Maximum number of batches that wait for deletion while further messages are read, so that bursts
/// are processed immediately.
const ENDING_MAX: usize = 1000;
/// Minimum interval between logs of malformed messages.
const TOLD: Duration = Duration::from_hours(1);

/// Receivers of events: the engines of clusters that this host leads, each with its `Fence`. The
/// fence must be open when messages for the engine are deleted: this host must still hold the
/// Lease.
pub(crate) type Engines = Arc<Mutex<BTreeMap<ClusterName, (mpsc::Sender<Event>, Fence)>>>;

/// An accepted message, with the fences of its engines.
type TakenMessage = (Received, Vec<Fence>);

/// The handling of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFate {
    /// All engines accepted the message, or it concerns no cluster: delete it.
    Delete,
    /// The message is for another host: return it to the queue.
    GiveBack,
    /// An engine did not accept the message: SQS delivers it again.
    Leave,
}

/// Reads one queue.
pub(crate) struct Listener {
    pub(crate) account: Arc<AwsClients>,
    pub(crate) lister: Arc<Lister>,
    pub(crate) engines: Engines,
    pub(crate) installation: String,
    pub(crate) queue: String,
    /// When a malformed message was last logged.
    malformed_logged_at: Option<Instant>,
    /// Accepted messages that are to be deleted. If the host stops before the deletion, another
    /// host receives them.
    ending: JoinSet<Result<(), AwsError>>,
}

impl Listener {
    pub(crate) fn new(
        account: Arc<AwsClients>,
        lister: Arc<Lister>,
        engines: Engines,
        installation: String,
        queue: String,
    ) -> Self {
        Self {
            account,
            lister,
            engines,
            installation,
            queue,
            malformed_logged_at: None,
            ending: JoinSet::new(),
        }
    }

    /// Reads forever, with backoff after errors.
    pub(crate) async fn listen(mut self) {
        let mut pause = PAUSE;
        let mut url = None;
        loop {
            match self.process_batch(&mut url).await {
                Ok(given_back) => {
                    pause = PAUSE;
                    if given_back {
                        sleep(PAUSE).await;
                    }
                }
                Err(fault) => {
                    let (queue, why) = (&self.queue, fault.to_failure("sqs").text);
                    tracing::warn!(queue, why, "cannot receive interruption messages");
                    url = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Processes one batch of messages. Returns whether any message was returned to the queue.
    async fn process_batch(&mut self, url: &mut Option<String>) -> Result<bool, AwsError> {
        let queue_url = match url {
            Some(known) => known.clone(),
            None => sqs::queue_url(&self.account, &self.queue).await?,
        };
        *url = Some(queue_url.clone());
        // Messages that cannot be deleted are delivered again, so back off.
        while let Some(ended) = self.ending.try_join_next() {
            ended.unwrap_or(Ok(()))?;
        }
        let messages = sqs::receive_messages(&self.account, &queue_url).await?;
        let due = clock::monotonic_now() + KEEP;
        let mut done = Vec::new();
        let mut given_back = false;
        for message in messages {
            let mut fences = Vec::new();
            let fate = match self.accept_message(&message, &mut fences).await {
                MessageFate::Delete if fences.is_empty() => self.fate_without_cluster(&mut fences),
                fate => fate,
            };
            match fate {
                MessageFate::Delete => done.push((message, fences)),
                MessageFate::GiveBack => {
                    sqs::return_message(&self.account, &queue_url, &message).await?;
                    given_back = true;
                }
                MessageFate::Leave => {}
            }
        }
        if self.ending.len() >= ENDING_MAX {
            let first = self.ending.join_next().await;
            first.and_then(Result::ok).unwrap_or(Ok(()))?;
        }
        if !done.is_empty() {
            self.ending.spawn(delete_accepted(self.account.clone(), queue_url, done, due));
        }
        Ok(given_back)
    }

    async fn accept_message(&mut self, message: &Received, fences: &mut Vec<Fence>) -> MessageFate {
        match interruption_message::parse_message(message.body().unwrap_or_default(), clock::now())
        {
            Ok(Message::NoOp) => {
                count_received("no_op");
                MessageFate::Delete
            }
            Ok(Message::Notice(notice)) => {
                count_received(notice.what.as_str());
                let waited = clock::now().duration_since(notice.said);
                let waited = Duration::try_from(waited).unwrap_or_default();
                metrics::histogram!(NOTICES).record(waited.as_secs_f64());
                self.deliver_notice(&notice, fences).await
            }
            Err(why) => {
                count_received("malformed");
                let now = clock::monotonic_now();
                if self.malformed_logged_at.is_none_or(|last| now.duration_since(last) > TOLD) {
                    self.malformed_logged_at = Some(now);
                    let queue = &self.queue;
                    tracing::warn!(queue, %why, "deleted invalid message");
                }
                MessageFate::Delete
            }
        }
    }

    /// Sends a notice to the engine of each instance that it concerns, even if one engine does not
    /// accept the notice. Duplicates are harmless.
    async fn deliver_notice(
        &self,
        notice: &InterruptionMessage,
        fences: &mut Vec<Fence>,
    ) -> MessageFate {
        let mut fate = MessageFate::Delete;
        for instance in &notice.instances {
            let instance_fate = match self.cluster_of(instance).await {
                Ok(None) => continue,
                Ok(Some(cluster)) => self.notify_engine(&cluster, instance, notice, fences).await,
                // The cluster of the instance is not known yet.
                Err(_) => MessageFate::Leave,
            };
            if instance_fate != MessageFate::Delete {
                fate = instance_fate;
            }
        }
        fate
    }

    async fn notify_engine(
        &self,
        cluster: &ClusterName,
        instance: &InstanceId,
        notice: &InterruptionMessage,
        fences: &mut Vec<Fence>,
    ) -> MessageFate {
        let engine = self.engines.lock().ok().and_then(|engines| engines.get(cluster).cloned());
        let Some((engine, fence)) = engine else {
            return self.fate_of_foreign();
        };
        fences.push(fence);
        let event = Event::Interrupted(instance.clone(), notice.what, notice.at);
        match timeout(TAKE, engine.send(event)).await {
            Ok(Ok(())) => MessageFate::Delete,
            // The engine has stopped. Another host may be the leader.
            Ok(Err(_)) => self.fate_of_foreign(),
            Err(_) => MessageFate::Leave,
        }
    }

    /// Handles a message for a cluster that this host does not lead. A suspended host with an
    /// expired Lease may change nothing, including the queue.
    fn fate_of_foreign(&self) -> MessageFate {
        let in_time = self.engines.lock().is_ok_and(|engines| {
            !engines.is_empty() && !engines.values().any(|(_, fence)| fence.has_run_out())
        });
        if in_time { MessageFate::GiveBack } else { MessageFate::Leave }
    }

    /// Handles a message for no cluster of this host. The host deletes the message only while it
    /// holds the Lease of a cluster. A host that leads no cluster deletes nothing, because an
    /// active Karpenter may read the same queue.
    fn fate_without_cluster(&self, fences: &mut Vec<Fence>) -> MessageFate {
        let open = self.engines.lock().ok().and_then(|engines| {
            let mut led = engines.values().map(|(_, fence)| fence);
            led.find(|fence| fence.is_open()).cloned()
        });
        match open {
            Some(fence) => {
                fences.push(fence);
                MessageFate::Delete
            }
            None => self.fate_of_foreign(),
        }
    }

    /// Returns the cluster of an instance. `None` if the instance does not belong to this
    /// installation.
    async fn cluster_of(&self, instance: &InstanceId) -> Result<Option<ClusterName>, AwsError> {
        let known = self.lister.find(&self.account, &self.installation, instance).await?;
        let cluster = known.and_then(|known| known.tags.get(TAG_CLUSTER).cloned());
        Ok(cluster.map(ClusterName))
    }
}

/// Counts a received message in Karpenter's metric.
fn count_received(kind: &'static str) {
    counter!("karpenter_interruption_received_messages_total", "message_type" => kind).increment(1);
}

/// Deletes accepted messages after their events were processed. A message that cannot be deleted is
/// delivered again, which is harmless. The same applies to messages of a host that was suspended
/// and has lost leadership.
async fn delete_accepted(
    account: Arc<AwsClients>,
    queue_url: String,
    done: Vec<TakenMessage>,
    due: Instant,
) -> Result<(), AwsError> {
    sleep_until(due).await;
    for (message, fences) in done {
        match fence::run_fenced(fences, sqs::delete_message(&account, &queue_url, &message)).await {
            Ok(deleted) => deleted?,
            Err(_) => continue,
        }
        counter!("karpenter_interruption_deleted_messages_total").increment(1);
    }
    Ok(())
}
