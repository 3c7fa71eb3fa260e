//! Messages about instances, from the queue of an account and region to the engines they are for.
//! It must not know what an engine does about one.
//!
//! Hosts of one installation share the queue: a message for a cluster that is not driven here is
//! given back at once, unless a Lease of this host has run out. One about an instance without our
//! installation's tag is nobody's, and deleted by whoever reads it.

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

/// After a look that failed, or a message that is another host's, the next waits this long.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// Time for an engine to take an event in; else the message comes again.
const TAKE: Duration = Duration::from_secs(5);
/// A message is deleted this long after it came: within that time an engine has
/// tainted the node, even by an API that is slow, and whoever ends before leaves the message to the
/// next. Well below the time for which a message is nobody else's.
const KEEP: Duration = Duration::from_secs(10);
/// Batches that wait to be deleted while others are read: a burst is heard of at once.
const ENDING_MAX: usize = 1000;
/// Malformed messages are told of no more often than this.
const TOLD: Duration = Duration::from_hours(1);

/// Whom events are for: the engines of clusters that are driven here, each with the fence that what
/// it has heard passes before it is deleted.
pub(crate) type Engines = Arc<Mutex<BTreeMap<ClusterName, (mpsc::Sender<Event>, Fence)>>>;

/// A message that was taken in, with the fences of whoever took it.
type TakenMessage = (Received, Vec<Fence>);

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFate {
    /// It has been taken in, or is nobody's.
    Delete,
    /// It is another host's.
    GiveBack,
    /// It was not taken in: it comes again by itself.
    Leave,
}

/// Reads one queue.
pub(crate) struct Listener {
    pub(crate) account: Arc<AwsClients>,
    pub(crate) lister: Arc<Lister>,
    pub(crate) engines: Engines,
    pub(crate) installation: String,
    pub(crate) queue: String,
    told: Option<Instant>,
    /// What was taken in and is about to be deleted; who ends before leaves it to the next.
    ending: JoinSet<Result<(), AwsError>>,
}

impl Listener {
    pub(crate) fn new(
        account: Arc<AwsClients>,
        lister: Arc<Lister>,
        engines: Engines,
        (installation, queue): (String, String),
    ) -> Self {
        Self {
            account,
            lister,
            engines,
            installation,
            queue,
            told: None,
            ending: JoinSet::new(),
        }
    }

    /// Reads for ever; what fails is tried again, ever more slowly.
    pub(crate) async fn listen(mut self) {
        let mut pause = PAUSE;
        let mut url = None;
        loop {
            match self.look(&mut url).await {
                Ok(given_back) => {
                    pause = PAUSE;
                    if given_back {
                        sleep(PAUSE).await;
                    }
                }
                Err(fault) => {
                    let (queue, why) = (&self.queue, fault.sorted("sqs").text);
                    tracing::warn!(queue, why, "interruptions are not heard of");
                    url = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Takes one batch of messages in. Returns whether any was given back.
    async fn look(&mut self, url: &mut Option<String>) -> Result<bool, AwsError> {
        let at = match url {
            Some(at) => at.clone(),
            None => sqs::url(&self.account, &self.queue).await?,
        };
        *url = Some(at.clone());
        // What cannot be deleted comes again and again: it is read ever more slowly.
        while let Some(ended) = self.ending.try_join_next() {
            ended.unwrap_or(Ok(()))?;
        }
        let messages = sqs::receive(&self.account, &at).await?;
        let due = clock::monotonic() + KEEP;
        let mut done = Vec::new();
        let mut given_back = false;
        for message in messages {
            let mut fences = Vec::new();
            let fate = match self.take(&message, &mut fences).await {
                MessageFate::Delete if fences.is_empty() => self.of_nobody(&mut fences),
                fate => fate,
            };
            match fate {
                MessageFate::Delete => done.push((message, fences)),
                MessageFate::GiveBack => {
                    sqs::give_back(&self.account, &at, &message).await?;
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
            self.ending
                .spawn(delete(self.account.clone(), at, (done, due)));
        }
        Ok(given_back)
    }

    async fn take(&mut self, message: &Received, fences: &mut Vec<Fence>) -> MessageFate {
        let kind = |kind: &'static str| {
            counter!("karpenter_interruption_received_messages_total", "message_type" => kind)
                .increment(1);
        };
        match interruption_message::read(message.body().unwrap_or_default(), clock::now()) {
            Ok(Message::NoOp) => {
                kind("no_op");
                MessageFate::Delete
            }
            Ok(Message::Notice(notice)) => {
                kind(notice.what.as_str());
                let waited = clock::now().duration_since(notice.said);
                let waited = Duration::try_from(waited).unwrap_or_default();
                metrics::histogram!(NOTICES).record(waited.as_secs_f64());
                self.deliver(&notice, fences).await
            }
            Err(why) => {
                kind("malformed");
                let now = clock::monotonic();
                if self.told.is_none_or(|at| now.duration_since(at) > TOLD) {
                    self.told = Some(now);
                    let queue = &self.queue;
                    tracing::warn!(queue, %why, "a message that cannot be read is deleted");
                }
                MessageFate::Delete
            }
        }
    }

    /// Tells the engines of all instances of a notice. What any of them does not take is not lost
    /// to the others: to be told twice harms nobody.
    async fn deliver(&self, notice: &InterruptionMessage, fences: &mut Vec<Fence>) -> MessageFate {
        let mut fate = MessageFate::Delete;
        for instance in &notice.instances {
            let own = match self.cluster_of(instance).await {
                Ok(None) => continue,
                Ok(Some(cluster)) => self.tell(&cluster, instance, notice, fences).await,
                // Whose it is nobody knows: somebody may, later.
                Err(_) => MessageFate::Leave,
            };
            if own != MessageFate::Delete {
                fate = own;
            }
        }
        fate
    }

    async fn tell(
        &self,
        cluster: &ClusterName,
        instance: &InstanceId,
        notice: &InterruptionMessage,
        fences: &mut Vec<Fence>,
    ) -> MessageFate {
        let engine = self
            .engines
            .lock()
            .ok()
            .and_then(|own| own.get(cluster).cloned());
        let Some((engine, fence)) = engine else {
            return self.not_ours();
        };
        fences.push(fence);
        let event = Event::Interrupted(instance.clone(), notice.what, notice.at);
        match timeout(TAKE, engine.send(event)).await {
            Ok(Ok(())) => MessageFate::Delete,
            // Its engine has ended: another host's may be there.
            Ok(Err(_)) => self.not_ours(),
            Err(_) => MessageFate::Leave,
        }
    }

    /// Decides about a message for a cluster that this host does not lead. A host that was stopped
    /// until one of its Leases ran out may change nothing any more, and the queue neither.
    fn not_ours(&self) -> MessageFate {
        let in_time = self.engines.lock().is_ok_and(|own| {
            !own.is_empty() && !own.values().any(|(_, fence)| fence.has_run_out())
        });
        if in_time {
            MessageFate::GiveBack
        } else {
            MessageFate::Leave
        }
    }

    /// Decides about a message that concerns no cluster of this host. The host deletes it in the
    /// term of a cluster that it leads. A host that leads no cluster deletes nothing, since a
    /// Karpenter that is at work may read the same queue.
    fn of_nobody(&self, fences: &mut Vec<Fence>) -> MessageFate {
        let led = |own: &BTreeMap<_, (_, Fence)>| {
            let mut all = own.values().map(|(_, fence)| fence);
            all.find(|own| own.is_open()).cloned()
        };
        match self.engines.lock().ok().and_then(|own| led(&own)) {
            Some(fence) => {
                fences.push(fence);
                MessageFate::Delete
            }
            None => self.not_ours(),
        }
    }

    /// The cluster of an instance; none where it is not of our installation.
    async fn cluster_of(&self, instance: &InstanceId) -> Result<Option<ClusterName>, AwsError> {
        let known = self
            .lister
            .find(&self.account, &self.installation, instance)
            .await?;
        let cluster = known.and_then(|own| own.tags.get(TAG_CLUSTER).cloned());
        Ok(cluster.map(ClusterName))
    }
}

/// Deletes what was taken in, once its events have been acted upon. What cannot be deleted comes
/// again, and harms nobody; so does what a host has taken in that was stopped before it could act,
/// and leads no more.
async fn delete(
    account: Arc<AwsClients>,
    at: String,
    (done, due): (Vec<TakenMessage>, Instant),
) -> Result<(), AwsError> {
    sleep_until(due).await;
    for (message, fences) in done {
        match fence::within(fences, sqs::delete(&account, &at, &message)).await {
            Ok(deleted) => deleted?,
            Err(_) => continue,
        }
        counter!("karpenter_interruption_deleted_messages_total").increment(1);
    }
    Ok(())
}
