//! The fleet on a task of its own: engines ask and are answered, and hear of each other.
//! It must not know what is asked, nor why it is granted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::engine::command::{CommandResult, FailureKind, IssuedCommand};
use crate::engine::event::Event;
use crate::fleet::Fleet;
use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::model::fleet::{FleetLimits, FleetView};
use crate::model::id::ClusterName;

/// Requests that wait for the fleet. Each engine has no more of them under way than it may make
/// calls at once, and each is answered within microseconds.
const QUEUE: usize = 4096;
/// News that wait for one engine. Beyond, views are told again, and what is held down is left out.
const NEWS: usize = 256;
/// The fleet is looked at no more often than this without a request, and at least this often.
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

/// A fleet that runs by the clock. It ends when the last of its handles is dropped.
#[derive(Clone)]
pub(crate) struct FleetHandle {
    requests: mpsc::Sender<FleetTaskRequest>,
}

impl FleetHandle {
    /// Starts a fleet that knows of no cluster.
    pub(crate) fn start() -> Self {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let keeper = FleetTask {
            fleet: Fleet::default(),
            seats: BTreeMap::new(),
            lives: 0,
        };
        tokio::spawn(keeper.keep(inbox));
        Self { requests }
    }

    /// Puts other limits and clusters in force.
    pub(crate) async fn configure(&self, limits: FleetLimits, clusters: Vec<Arc<Cluster>>) {
        drop(
            self.requests
                .send(FleetTaskRequest::Configure(limits, clusters))
                .await,
        );
    }

    /// A seat for a new engine of a cluster; what an earlier one still asks for is not heard.
    pub(crate) async fn join(&self, cluster: &ClusterName) -> FleetClient {
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

/// One engine's place in the fleet.
pub(crate) struct FleetClient {
    fleet: FleetHandle,
    cluster: ClusterName,
    life: u64,
    /// What is known of the fleet at the start.
    pub(crate) view: Option<Arc<FleetView>>,
    /// What else there is to tell.
    news: mpsc::Receiver<Event>,
}

impl FleetClient {
    /// Hands a command over. Commands are taken in the order in which this is called.
    pub(crate) fn ask(&self, issued: IssuedCommand) -> oneshot::Receiver<CommandResult> {
        let (reply, answer) = oneshot::channel();
        let request = FleetTaskRequest::Ask {
            cluster: self.cluster.clone(),
            life: self.life,
            issued: Box::new(issued),
            reply,
        };
        // What is not taken is not answered, and the engine asks again.
        drop(self.fleet.requests.try_send(request));
        answer
    }

    /// What the fleet has to tell; none once it has ended.
    pub(crate) async fn news(&mut self) -> Option<Event> {
        self.news.recv().await
    }
}

/// What becomes of a command.
pub(crate) async fn answered(answer: oneshot::Receiver<CommandResult>) -> CommandResult {
    answer
        .await
        .unwrap_or_else(|_| failed("the fleet does not answer"))
}

fn failed(text: &str) -> CommandResult {
    CommandResult::Failed {
        kind: FailureKind::Unknown,
        text: text.to_owned(),
    }
}

struct FleetTask {
    fleet: Fleet,
    /// The engines that drive the clusters now.
    seats: BTreeMap<ClusterName, (u64, mpsc::Sender<Event>)>,
    lives: u64,
}

impl FleetTask {
    async fn keep(mut self, mut inbox: mpsc::Receiver<FleetTaskRequest>) {
        loop {
            let now = clock::now();
            self.fleet.ring(now);
            self.spread(None, now);
            let due = self.fleet.poll_timeout(now);
            let wait = due.map_or(IDLE, clock::until).clamp(PAUSE, IDLE);
            tokio::select! {
                request = inbox.recv() => match request {
                    Some(request) => self.take(request, clock::now()),
                    None => return,
                },
                () = sleep(wait) => {}
            }
        }
    }

    fn take(&mut self, request: FleetTaskRequest, now: Timestamp) {
        match request {
            FleetTaskRequest::Configure(limits, clusters) => {
                let named = |name: &ClusterName| clusters.iter().any(|own| own.name == *name);
                self.seats.retain(|name, _| named(name));
                self.fleet.configure(limits, &clusters, now);
            }
            FleetTaskRequest::Join(cluster, reply) => {
                self.lives += 1;
                let (tell, news) = mpsc::channel(NEWS);
                self.seats.insert(cluster.clone(), (self.lives, tell));
                self.fleet.rejoin(&cluster, now);
                let (life, view) = (self.lives, self.fleet.view_of(&cluster, now));
                drop(reply.send(Joined { life, view, news }));
            }
            FleetTaskRequest::Ask {
                cluster,
                life,
                issued,
                reply,
            } => {
                if self.seats.get(&cluster).is_none_or(|own| own.0 != life) {
                    drop(reply.send(failed("another engine drives the cluster")));
                    return;
                }
                self.fleet.handle(&cluster, *issued, now);
                self.spread(Some(reply), now);
            }
        }
    }

    /// Carries events to their engines. At most one of them is an answer.
    fn spread(&mut self, mut reply: Option<oneshot::Sender<CommandResult>>, now: Timestamp) {
        while let Some((cluster, event)) = self.fleet.next_event() {
            if let Event::Answered(_, answer) = event {
                if let Some(reply) = reply.take() {
                    drop(reply.send(answer));
                }
                continue;
            }
            let is_view = matches!(event, Event::FleetChanged(_));
            let told = self
                .seats
                .get(&cluster)
                .is_none_or(|own| own.1.try_send(event).is_ok());
            if !told && is_view {
                self.fleet.missed(&cluster, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{FleetClient, FleetHandle, answered};
    use crate::engine::command::{Command, CommandId, CommandResult, FailureKind, IssuedCommand};
    use crate::engine::event::Event;
    use crate::model::cluster::{Cluster, ManagementMode};
    use crate::model::fleet::{ClaimUsage, FleetLimits, GrantRequest};

    fn cluster(name: &str) -> Arc<Cluster> {
        Arc::new(Cluster {
            name: name.into(),
            mode: ManagementMode::Manage,
            ..Cluster::default()
        })
    }

    async fn command(seat: &FleetClient, command: Command) -> CommandResult {
        let id = CommandId(1);
        answered(seat.ask(IssuedCommand { id, command })).await
    }

    async fn ask(seat: &FleetClient, claim: &str) -> CommandResult {
        let (claim, holding) = (claim.into(), ClaimUsage::default());
        command(
            seat,
            Command::Ask(Box::new(GrantRequest { claim, holding })),
        )
        .await
    }

    async fn tell_nothing(seat: &FleetClient) {
        let (whole, claims) = (true, Vec::new());
        let answer = command(seat, Command::Account { whole, claims }).await;
        assert_eq!(answer, CommandResult::Done);
    }

    /// A fleet of two clusters that may have one node between them.
    async fn fleet() -> FleetHandle {
        let fleet = FleetHandle::start();
        let mut limits = FleetLimits::default();
        limits.limits.nodes = Some(1);
        fleet
            .configure(limits, vec![cluster("east"), cluster("west")])
            .await;
        fleet
    }

    #[tokio::test]
    async fn engines_are_answered_and_hear_of_each_other() {
        let fleet = fleet().await;
        let east = fleet.join(&"east".into()).await;
        let mut west = fleet.join(&"west".into()).await;
        let view = west.view.take().expect("limits are shared");
        assert!(view.closed.is_some(), "nobody has said yet what it has");
        tell_nothing(&east).await;
        tell_nothing(&west).await;
        assert_eq!(ask(&east, "a").await, CommandResult::Granted);
        assert!(matches!(
            ask(&west, "b").await,
            CommandResult::Denied { .. }
        ));
        let left = async {
            while let Some(event) = west.news().await {
                if let Event::FleetChanged(Some(view)) = event
                    && view.closed.is_none()
                {
                    return view.share.nodes;
                }
            }
            None
        };
        assert_eq!(
            left.await,
            Some(1),
            "what it could have when all had spoken"
        );
    }

    #[tokio::test]
    async fn an_engine_that_was_replaced_is_not_heard() {
        let fleet = fleet().await;
        let old = fleet.join(&"east".into()).await;
        let new = fleet.join(&"east".into()).await;
        let west = fleet.join(&"west".into()).await;
        tell_nothing(&new).await;
        tell_nothing(&west).await;
        let answer = ask(&old, "a").await;
        let unknown = |kind| kind == FailureKind::Unknown;
        assert!(matches!(answer, CommandResult::Failed { kind, .. } if unknown(kind)));
        assert_eq!(ask(&new, "b").await, CommandResult::Granted);
    }
}
