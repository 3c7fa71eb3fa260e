//! Runs the fleet in its own task. Engines send requests and receive results and events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::engine::command::IssuedCommand;
use crate::engine::event::Event;
use crate::fleet::Fleet;
use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::model::fleet::{FleetLimits, FleetView};
use crate::model::id::ClusterName;
use crate::provider::{CommandResult, FailureKind};

/// Capacity of the request channel. An engine has at most as many requests in flight as it may have
/// concurrent calls, and the fleet processes each request within microseconds.
const QUEUE: usize = 4096;
/// Capacity of the event channel of one engine. If the channel is full, the fleet sends its view
/// again later, and drops notices about unavailable offerings.
const NEWS: usize = 256;
/// Minimum and maximum interval between passes of the fleet when no request arrives.
const PAUSE: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_secs(10);

enum FleetTaskRequest {
    Configure(FleetLimits, Vec<Arc<Cluster>>),
    Join(ClusterName, oneshot::Sender<Joined>),
    Ask {
        cluster: ClusterName,
        life: u64,
        issued: Box<IssuedCommand>,
        reply: oneshot::Sender<CommandResult>,
    },
}

struct Joined {
    life: u64,
    view: Option<Arc<FleetView>>,
    news: mpsc::Receiver<Event>,
}

/// A handle to the fleet task. The task ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct FleetHandle {
    requests: mpsc::Sender<FleetTaskRequest>,
}

impl FleetHandle {
    /// Starts a fleet without clusters.
    pub(crate) fn start() -> Self {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let task = FleetTask { fleet: Fleet::default(), seats: BTreeMap::new(), lives: 0 };
        tokio::spawn(task.run_until_dropped(inbox));
        Self { requests }
    }

    /// Sets the limits and the clusters.
    pub(crate) async fn configure(&self, limits: FleetLimits, clusters: Vec<Arc<Cluster>>) {
        drop(self.requests.send(FleetTaskRequest::Configure(limits, clusters)).await);
    }

    /// Creates a client for a new engine of a cluster. Requests of an earlier engine are rejected
    /// from then on.
    pub(crate) async fn join_cluster(&self, cluster: &ClusterName) -> FleetClient {
        let (reply, joined) = oneshot::channel();
        let request = FleetTaskRequest::Join(cluster.clone(), reply);
        drop(self.requests.send(request).await);
        let joined = joined.await.unwrap_or_else(|_| Joined {
            life: 0,
            view: None,
            news: mpsc::channel(1).1,
        });
        FleetClient {
            fleet: self.clone(),
            cluster: cluster.clone(),
            life: joined.life,
            view: joined.view,
            news: joined.news,
        }
    }
}

/// The fleet client of one engine.
pub(crate) struct FleetClient {
    fleet: FleetHandle,
    cluster: ClusterName,
    life: u64,
    /// The view of the fleet at the start.
    pub(crate) view: Option<Arc<FleetView>>,
    /// Further events.
    news: mpsc::Receiver<Event>,
}

impl FleetClient {
    /// Sends a command. The fleet processes commands in the order of these calls.
    pub(crate) fn send_command(&self, issued: IssuedCommand) -> oneshot::Receiver<CommandResult> {
        let (reply, answer) = oneshot::channel();
        let request = FleetTaskRequest::Ask {
            cluster: self.cluster.clone(),
            life: self.life,
            issued: Box::new(issued),
            reply,
        };
        // If the channel is full, the fleet does not get the request, and the engine retries
        // because it gets no result.
        drop(self.fleet.requests.try_send(request));
        answer
    }

    /// Returns the next event of the fleet. `None` once the fleet has stopped.
    pub(crate) async fn next_event(&mut self) -> Option<Event> {
        self.news.recv().await
    }
}

/// Waits for the result of a command.
pub(crate) async fn wait_for_result(answer: oneshot::Receiver<CommandResult>) -> CommandResult {
    answer.await.unwrap_or_else(|_| unknown_outcome("the fleet does not respond"))
}

/// The result of a command that may have taken effect.
pub(crate) fn unknown_outcome(text: impl Into<String>) -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Unknown, text: text.into() }
}

struct FleetTask {
    fleet: Fleet,
    /// The current engines of the clusters.
    seats: BTreeMap<ClusterName, (u64, mpsc::Sender<Event>)>,
    lives: u64,
}

impl FleetTask {
    async fn run_until_dropped(mut self, mut inbox: mpsc::Receiver<FleetTaskRequest>) {
        loop {
            let now = clock::now();
            self.fleet.notify_due(now);
            self.send_events(None, now);
            let due = self.fleet.poll_timeout(now);
            let wait = due.map_or(IDLE, clock::time_until).clamp(PAUSE, IDLE);
            tokio::select! {
                request = inbox.recv() => match request {
                    Some(request) => self.handle_request(request, clock::now()),
                    None => return,
                },
                () = sleep(wait) => {}
            }
        }
    }

    fn handle_request(&mut self, request: FleetTaskRequest, now: Timestamp) {
        match request {
            FleetTaskRequest::Configure(limits, clusters) => {
                self.seats.retain(|name, _| clusters.iter().any(|cluster| cluster.name == *name));
                self.fleet.configure(limits, &clusters, now);
            }
            FleetTaskRequest::Join(cluster, reply) => {
                self.lives += 1;
                let (event_sender, news) = mpsc::channel(NEWS);
                self.seats.insert(cluster.clone(), (self.lives, event_sender));
                self.fleet.on_engine_start(&cluster, now);
                let (life, view) = (self.lives, self.fleet.view_of(&cluster, now));
                drop(reply.send(Joined { life, view, news }));
            }
            FleetTaskRequest::Ask { cluster, life, issued, reply } => {
                if self.seats.get(&cluster).is_none_or(|seat| seat.0 != life) {
                    drop(reply.send(unknown_outcome("another engine runs the cluster")));
                    return;
                }
                self.fleet.handle_command(&cluster, *issued, now);
                self.send_events(Some(reply), now);
            }
        }
    }

    /// Sends events to their engines. At most one of the events is the result of a request.
    fn send_events(&mut self, mut reply: Option<oneshot::Sender<CommandResult>>, now: Timestamp) {
        while let Some((cluster, event)) = self.fleet.next_event() {
            if let Event::Answered(_, answer) = event {
                if let Some(reply) = reply.take() {
                    drop(reply.send(answer));
                }
                continue;
            }
            let is_view = matches!(event, Event::FleetChanged(_));
            let was_sent =
                self.seats.get(&cluster).is_none_or(|seat| seat.1.try_send(event).is_ok());
            if !was_sent && is_view {
                self.fleet.on_event_missed(&cluster, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{FleetClient, FleetHandle, wait_for_result};
    use crate::engine::command::{Command, CommandId, IssuedCommand};
    use crate::engine::event::Event;
    use crate::model::cluster::{Cluster, ManagementMode};
    use crate::model::fleet::{ClaimUsage, FleetLimits, GrantRequest};
    use crate::provider::{CommandResult, FailureKind};

    fn cluster(name: &str) -> Arc<Cluster> {
        Arc::new(Cluster { name: name.into(), mode: ManagementMode::Manage, ..Cluster::default() })
    }

    async fn command(fleet_client: &FleetClient, command: Command) -> CommandResult {
        let id = CommandId(1);
        wait_for_result(fleet_client.send_command(IssuedCommand { id, command })).await
    }

    async fn request_grant(fleet_client: &FleetClient, claim: &str) -> CommandResult {
        let (claim, holding) = (claim.into(), ClaimUsage::default());
        command(fleet_client, Command::RequestGrant(Box::new(GrantRequest { claim, holding })))
            .await
    }

    async fn report_no_usage(fleet_client: &FleetClient) {
        let (whole, claims) = (true, Vec::new());
        let answer = command(fleet_client, Command::ReportUsage { whole, claims }).await;
        assert_eq!(answer, CommandResult::Done);
    }

    /// A fleet of two clusters with a limit of one node in total.
    async fn fleet() -> FleetHandle {
        let fleet = FleetHandle::start();
        let mut limits = FleetLimits::default();
        limits.limits.nodes = Some(1);
        fleet.configure(limits, vec![cluster("east"), cluster("west")]).await;
        fleet
    }

    #[tokio::test]
    async fn engines_receive_grants_and_usage_of_other_clusters() {
        let fleet = fleet().await;
        let east = fleet.join_cluster(&"east".into()).await;
        let mut west = fleet.join_cluster(&"west".into()).await;
        let view = west.view.take().expect("a view of the limits");
        assert!(view.closed.is_some(), "no cluster has reported its usage yet");
        report_no_usage(&east).await;
        report_no_usage(&west).await;
        assert_eq!(request_grant(&east, "a").await, CommandResult::Granted);
        assert!(matches!(request_grant(&west, "b").await, CommandResult::Denied { .. }));
        let left = async {
            while let Some(event) = west.next_event().await {
                if let Event::FleetChanged(Some(view)) = event
                    && view.closed.is_none()
                {
                    return view.share.nodes;
                }
            }
            None
        };
        assert_eq!(left.await, Some(1), "the share once all clusters have reported");
    }

    #[tokio::test]
    async fn grant_request_of_a_replaced_engine_fails() {
        let fleet = fleet().await;
        let old = fleet.join_cluster(&"east".into()).await;
        let new = fleet.join_cluster(&"east".into()).await;
        let west = fleet.join_cluster(&"west".into()).await;
        report_no_usage(&new).await;
        report_no_usage(&west).await;
        let answer = request_grant(&old, "a").await;
        let unknown = |kind| kind == FailureKind::Unknown;
        assert!(matches!(answer, CommandResult::Failed { kind, .. } if unknown(kind)));
        assert_eq!(request_grant(&new, "b").await, CommandResult::Granted);
    }
}
