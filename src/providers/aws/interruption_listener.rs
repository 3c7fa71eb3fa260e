//! Reads interruption messages from the queue of an account and region and sends them to the
//! engines of the affected clusters.
//!
//! ```text
//! receive ─► one task per message: cluster of the instance ─┬─► engine ─► handled ─► delete
//!                                                           ├─► another host ─► return
//!                                                           └─► not listed yet ─► return
//! ```
//!
//! A message is deleted when the engine has handled it, for example has tainted the node. Until
//! then the task keeps the message invisible. If the host stops earlier, another host receives the
//! message.
//!
//! Hosts of one installation share the queue. A message for a cluster that another host leads is
//! returned, unless a Lease of this host has expired. A message about an instance without the tag
//! of the installation is deleted by any host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::Message as Received;
use metrics::counter;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::ec2::interruption_message::{self, InterruptionMessage, Message};
use crate::engine::event::Event;
use crate::host::clock;
use crate::model::claim::TAG_CLUSTER;
use crate::model::id::{ClusterName, InstanceId};
use crate::outbound::fence::{self, Fence};
use crate::provider::NoticeReceipt;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::instances::{LISTED_WITHIN, Lister};
use crate::providers::aws::sqs;
use crate::telemetry::metric_definitions::NOTICES;

/// Delay after a failed read.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// Time for an engine to accept an event. Otherwise the message is delivered again.
const TAKE: Duration = Duration::from_secs(5);
/// Interval at which a task checks whether the engine has handled its message.
const CHECK: Duration = Duration::from_millis(250);
/// Interval at which a message is kept invisible: half of the visibility timeout.
const EXTEND: Duration = Duration::from_secs(10);
/// Maximum time that a message is kept invisible. Then SQS delivers it again.
const HANDLED_MAX: Duration = Duration::from_mins(5);
/// Maximum number of messages in progress, so that bursts are processed immediately.
const TASKS_MAX: usize = 10_000;
/// Maximum number of concurrent calls that delete or return messages.
const CALLS_MAX: usize = 32;
/// Number of deliveries after which a message for another host is delivered less often. Until then
/// each host of the installation has probably received it.
const PROMPT_DELIVERIES: u32 = 10;
/// Maximum time until a returned message is delivered again.
const RETURN_MAX: Duration = Duration::from_secs(30);
/// Delay before a message about an unlisted instance is delivered for the second time. Most
/// instances are listed by then, and the listing of the first time is no longer used.
const UNLISTED_RETURN: Duration = Duration::from_secs(12);
/// Number of deliveries after which an unlisted instance is foreign, even if the clocks differ.
const UNLISTED_DELIVERIES: u32 = 8;
/// Minimum interval between logs of malformed messages.
const MALFORMED_LOGS: Duration = Duration::from_hours(1);
/// Minimum interval between logs of messages that cannot be deleted or returned.
const CALL_LOGS: Duration = Duration::from_mins(1);

/// Receivers of events: the engines of clusters that this host leads, each with its `Fence`. The
/// fence must be open when messages for the engine are deleted: this host must still hold the
/// Lease.
pub(crate) type Engines = Arc<Mutex<BTreeMap<ClusterName, (mpsc::Sender<Event>, Fence)>>>;

/// What happens to a message. Of the fates of several instances the greatest applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MessageFate {
    /// All engines accepted the message, or it concerns no cluster: delete it when it is handled.
    Delete,
    /// The message is for another host, or its instance is not listed yet: return it to the queue,
    /// visible after this time.
    GiveBack(Duration),
    /// An engine did not accept the message: SQS delivers it again.
    Leave,
}

/// The engines that accepted a message.
#[derive(Debug, Default)]
struct Acceptance {
    receipts: Vec<NoticeReceipt>,
    fences: Vec<Fence>,
}

/// The time of the last log of a kind.
#[derive(Debug, Default)]
struct LastLog(Mutex<Option<Instant>>);

impl LastLog {
    /// Returns whether this kind was not logged during the last `interval`, and records that it is
    /// logged now.
    fn is_due(&self, interval: Duration) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic_now();
        let due = last.is_none_or(|last| now.duration_since(last) > interval);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// Reads one queue.
pub(crate) struct Listener {
    account: Arc<AwsClients>,
    lister: Arc<Lister>,
    engines: Engines,
    installation: String,
    queue: String,
    calls: Semaphore,
    malformed: LastLog,
    failed_calls: LastLog,
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
            calls: Semaphore::new(CALLS_MAX),
            malformed: LastLog::default(),
            failed_calls: LastLog::default(),
        }
    }

    /// Reads forever, with backoff after errors. Each message has its own task, so that no message
    /// waits for another one.
    pub(crate) async fn listen(self) {
        let listener = Arc::new(self);
        let mut tasks = JoinSet::new();
        let mut pause = PAUSE;
        let mut url = None;
        loop {
            while tasks.try_join_next().is_some() {}
            if tasks.len() >= TASKS_MAX {
                tasks.join_next().await;
                continue;
            }
            match listener.receive(&mut url).await {
                Ok((url, messages)) => {
                    pause = PAUSE;
                    for message in messages {
                        tasks.spawn(listener.clone().process(url.clone(), message));
                    }
                }
                Err(fault) => {
                    let (queue, why) = (&listener.queue, fault.to_failure("sqs").text);
                    tracing::warn!(queue, why, "cannot receive interruption messages");
                    url = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Receives messages, with the URL of the queue.
    async fn receive(&self, url: &mut Option<String>) -> Result<(String, Vec<Received>), AwsError> {
        let queue_url = match url {
            Some(known) => known.clone(),
            None => sqs::queue_url(&self.account, &self.queue).await?,
        };
        *url = Some(queue_url.clone());
        let messages = sqs::receive_messages(&self.account, &queue_url).await?;
        Ok((queue_url, messages))
    }

    /// Processes one message until it is deleted, returned, or left to SQS.
    async fn process(self: Arc<Self>, url: String, message: Received) {
        let mut accepted = Acceptance::default();
        let fate = match self.accept_message(&message, &mut accepted).await {
            MessageFate::Delete if accepted.fences.is_empty() => {
                self.fate_without_cluster(&message, &mut accepted.fences)
            }
            fate => fate,
        };
        let done = match fate {
            MessageFate::Delete => self.delete_when_handled(&url, &message, &accepted).await,
            MessageFate::GiveBack(after) => {
                let _call = self.calls.acquire().await;
                sqs::change_visibility(&self.account, &url, &message, after).await
            }
            MessageFate::Leave => Ok(()),
        };
        // SQS delivers the message again.
        if let Err(fault) = done
            && self.failed_calls.is_due(CALL_LOGS)
        {
            let (queue, why) = (&self.queue, fault.to_failure("sqs").text);
            tracing::warn!(queue, why, "cannot delete or return interruption message");
        }
    }

    async fn accept_message(&self, message: &Received, accepted: &mut Acceptance) -> MessageFate {
        match interruption_message::parse_message(message.body().unwrap_or_default(), clock::now())
        {
            Ok(Message::NoOp) => {
                count_received("no_op");
                MessageFate::Delete
            }
            Ok(Message::Notice(notice)) => {
                count_received(notice.what.as_str());
                metrics::histogram!(NOTICES).record(age(&notice).as_secs_f64());
                self.deliver_notice(message, &notice, accepted).await
            }
            Err(why) => {
                count_received("malformed");
                if self.malformed.is_due(MALFORMED_LOGS) {
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
        message: &Received,
        notice: &InterruptionMessage,
        accepted: &mut Acceptance,
    ) -> MessageFate {
        let mut fate = MessageFate::Delete;
        for instance in &notice.instances {
            fate = fate.max(match self.cluster_of(instance).await {
                Ok(Some(cluster)) => {
                    self.notify_engine(&cluster, instance, message, notice, accepted).await
                }
                Ok(None) => self.fate_of_unlisted(message, notice),
                // The cluster of the instance is not known yet.
                Err(_) => MessageFate::Leave,
            });
        }
        fate
    }

    async fn notify_engine(
        &self,
        cluster: &ClusterName,
        instance: &InstanceId,
        message: &Received,
        notice: &InterruptionMessage,
        accepted: &mut Acceptance,
    ) -> MessageFate {
        let engine = self.engines.lock().ok().and_then(|engines| engines.get(cluster).cloned());
        let Some((engine, fence)) = engine else {
            return self.give_back(delay_for_other_hosts(message));
        };
        let receipt = NoticeReceipt::default();
        let receipt_of_event = Some(receipt.clone());
        let event = Event::Interrupted(instance.clone(), notice.what, notice.at, receipt_of_event);
        match timeout(TAKE, engine.send(event)).await {
            Ok(Ok(())) => {
                accepted.receipts.push(receipt);
                accepted.fences.push(fence);
                MessageFate::Delete
            }
            // The engine has stopped. Another host may be the leader.
            Ok(Err(_)) => self.give_back(delay_for_other_hosts(message)),
            Err(_) => MessageFate::Leave,
        }
    }

    /// Returns a message to the queue. A suspended host with an expired Lease may change nothing,
    /// including the queue.
    fn give_back(&self, after: Duration) -> MessageFate {
        let in_time = self.engines.lock().is_ok_and(|engines| {
            !engines.is_empty() && !engines.values().any(|(_, fence)| fence.has_run_out())
        });
        if in_time { MessageFate::GiveBack(after) } else { MessageFate::Leave }
    }

    /// Handles a notice about an instance that no listing shows. It is foreign, or too new.
    fn fate_of_unlisted(&self, message: &Received, notice: &InterruptionMessage) -> MessageFate {
        let rest = LISTED_WITHIN.saturating_sub(age(notice));
        match sqs::receive_count(message) {
            UNLISTED_DELIVERIES.. => MessageFate::Delete,
            _ if rest < PAUSE => MessageFate::Delete,
            1 => self.give_back(rest.min(UNLISTED_RETURN)),
            _ => self.give_back(rest),
        }
    }

    /// Handles a message for no cluster of this host. The host deletes the message only while it
    /// holds the Lease of a cluster. A host that leads no cluster deletes nothing, because an
    /// active Karpenter may read the same queue.
    fn fate_without_cluster(&self, message: &Received, fences: &mut Vec<Fence>) -> MessageFate {
        let open = self.engines.lock().ok().and_then(|engines| {
            let mut led = engines.values().map(|(_, fence)| fence);
            led.find(|fence| fence.is_open()).cloned()
        });
        match open {
            Some(fence) => {
                fences.push(fence);
                MessageFate::Delete
            }
            None => self.give_back(delay_for_other_hosts(message)),
        }
    }

    /// Returns the cluster of an instance. `None` if no listing shows the instance with the tags of
    /// this installation.
    async fn cluster_of(&self, instance: &InstanceId) -> Result<Option<ClusterName>, AwsError> {
        let known = self.lister.find(&self.account, &self.installation, instance).await?;
        let cluster = known.and_then(|known| known.tags.get(TAG_CLUSTER).cloned());
        Ok(cluster.map(ClusterName))
    }

    /// Deletes a message after its engines have handled it. A message that cannot be deleted is
    /// delivered again, which is harmless. The same applies to messages of a host that was
    /// suspended and has lost leadership, and to messages that are not handled in time.
    async fn delete_when_handled(
        &self,
        url: &str,
        message: &Received,
        accepted: &Acceptance,
    ) -> Result<(), AwsError> {
        let began = clock::monotonic_now();
        let mut extended = began;
        while !accepted.receipts.iter().all(NoticeReceipt::is_acknowledged) {
            if began.elapsed() > HANDLED_MAX {
                return Ok(());
            }
            if extended.elapsed() >= EXTEND {
                extended = clock::monotonic_now();
                let after = sqs::VISIBILITY;
                let call = sqs::change_visibility(&self.account, url, message, after);
                if !self.run_call(accepted, call).await? {
                    return Ok(());
                }
            }
            sleep(CHECK).await;
        }
        let call = sqs::delete_message(&self.account, url, message);
        if self.run_call(accepted, call).await? {
            counter!("karpenter_interruption_deleted_messages_total").increment(1);
        }
        Ok(())
    }

    /// Runs a call while this host leads the clusters of the message. Returns whether it ran.
    async fn run_call(
        &self,
        accepted: &Acceptance,
        call: impl Future<Output = Result<(), AwsError>>,
    ) -> Result<bool, AwsError> {
        let _call = self.calls.acquire().await;
        match fence::run_fenced(accepted.fences.clone(), call).await {
            Ok(done) => done.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

/// Returns how long ago AWS sent a notice: zero if the clocks differ.
fn age(notice: &InterruptionMessage) -> Duration {
    Duration::try_from(clock::now().duration_since(notice.said)).unwrap_or_default()
}

/// Returns when a message for another host is visible again: soon until each host has probably
/// received it, then less and less often, so that messages without a host do not crowd out others.
fn delay_for_other_hosts(message: &Received) -> Duration {
    let later = sqs::receive_count(message).saturating_sub(PROMPT_DELIVERIES).min(5);
    (PAUSE * (1 << later)).min(RETURN_MAX)
}

/// Counts a received message in Karpenter's metric.
fn count_received(kind: &'static str) {
    counter!("karpenter_interruption_received_messages_total", "message_type" => kind).increment(1);
}
