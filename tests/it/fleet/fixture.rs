//! A fleet with scripted clusters that record its messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::engine::command::{Command, CommandId, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::fleet::Fleet;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::fleet::{
    ClaimUsage, FleetLimits, FleetView, GrantRequest, SharedReservation,
};
use outrigger::model::id::ClusterName;
use outrigger::model::instance::UnavailableKey;
use outrigger::model::pool::Limits;
use outrigger::model::quantity::Resources;
use outrigger::provider::CommandResult;

/// A fleet, and the messages that each cluster received.
pub(super) struct Stage {
    pub(super) fleet: Fleet,
    pub(super) now: Timestamp,
    pub(super) views: BTreeMap<ClusterName, Option<Arc<FleetView>>>,
    /// The number of views that each cluster received.
    pub(super) view_counts: BTreeMap<ClusterName, usize>,
    pub(super) unavailable: Vec<(ClusterName, Vec<UnavailableKey>, Timestamp)>,
    commands: u64,
}

/// Returns a managed cluster with this name. All have the same region.
pub(super) fn cluster(name: &str) -> Cluster {
    Cluster {
        name: name.into(),
        mode: ManagementMode::Manage,
        region: "eu-central-1".into(),
        ..Cluster::default()
    }
}

/// Returns fleet limits of cores and nodes.
pub(super) fn limits(cores: i64, nodes: u32) -> FleetLimits {
    FleetLimits {
        limits: Limits { nodes: Some(nodes), capacity: vec![("cpu".to_owned(), cores * 1000)] },
        ..FleetLimits::default()
    }
}

/// Returns the usage of a claim with this many cores.
pub(super) fn cores(cores: i64) -> ClaimUsage {
    let capacity = Resources { cpu_milli: cores * 1000, memory: 4 << 30, ..Resources::default() };
    ClaimUsage { capacity, reservation: None }
}

/// Returns the usage of an instance of a reservation.
pub(super) fn reserved(id: &str, count: u32) -> ClaimUsage {
    let id = id.to_owned();
    ClaimUsage { reservation: Some(SharedReservation { id, count }), ..cores(1) }
}

impl Stage {
    pub(super) fn new(limits: FleetLimits, clusters: &[Cluster]) -> Self {
        let mut stage = Self {
            fleet: Fleet::default(),
            now: Timestamp::from_second(1_800_000_000).expect("in range"),
            views: BTreeMap::new(),
            view_counts: BTreeMap::new(),
            unavailable: Vec::new(),
            commands: 0,
        };
        stage.configure(limits, clusters);
        stage
    }

    pub(super) fn configure(&mut self, limits: FleetLimits, clusters: &[Cluster]) {
        let clusters: Vec<Arc<Cluster>> = clusters.iter().cloned().map(Arc::new).collect();
        self.fleet.configure(limits, &clusters, self.now);
        self.receive();
    }

    /// Advances the time and runs the due notifications of the fleet.
    pub(super) fn advance(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        while let Some(at) = self.fleet.poll_timeout(self.now).filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.fleet.notify_due(self.now);
            self.receive();
        }
        self.now = end;
        self.fleet.notify_due(self.now);
        self.receive();
    }

    pub(super) fn command(&mut self, cluster: &str, command: Command) -> CommandResult {
        self.commands += 1;
        let id = CommandId(self.commands);
        let issued = IssuedCommand { id, command };
        self.fleet.handle_command(&cluster.into(), issued, self.now);
        self.receive().expect("every command is answered")
    }

    /// Reports all claims of a cluster.
    pub(super) fn report_all(&mut self, cluster: &str, claims: &[(&str, ClaimUsage)]) {
        let own = |(id, holding): &(&str, ClaimUsage)| ((*id).into(), Some(holding.clone()));
        let claims = claims.iter().map(own).collect();
        let whole = true;
        let answer = self.command(cluster, Command::ReportUsage { whole, claims });
        assert_eq!(answer, CommandResult::Done);
    }

    /// Reports the change of one claim.
    pub(super) fn report_change(
        &mut self,
        cluster: &str,
        claim: &str,
        now: Option<ClaimUsage>,
    ) -> CommandResult {
        let (whole, claims) = (false, vec![(claim.into(), now)]);
        self.command(cluster, Command::ReportUsage { whole, claims })
    }

    pub(super) fn request_grant(
        &mut self,
        cluster: &str,
        claim: &str,
        holding: ClaimUsage,
    ) -> CommandResult {
        let claim = claim.into();
        self.command(cluster, Command::RequestGrant(Box::new(GrantRequest { claim, holding })))
    }

    /// Requests a grant, and checks that it is denied with these words.
    pub(super) fn assert_denied(
        &mut self,
        cluster: &str,
        claim: &str,
        holding: ClaimUsage,
        words: &str,
    ) {
        match self.request_grant(cluster, claim, holding) {
            CommandResult::Denied { why, .. } => {
                assert!(why.contains(words), "{why:?}, not {words:?}")
            }
            other => panic!("{claim} of {cluster}: {other:?}"),
        }
    }

    pub(super) fn assert_granted(&mut self, cluster: &str, claim: &str, holding: ClaimUsage) {
        assert_eq!(self.request_grant(cluster, claim, holding), CommandResult::Granted);
    }

    /// Returns the cores and nodes that a cluster may use in total.
    pub(super) fn share(&self, cluster: &str) -> (i64, Option<u32>) {
        let view = self.views[cluster].as_ref().expect("a view");
        (view.share.capacity[0].1 / 1000, view.share.nodes)
    }

    /// Records all messages of the fleet, and returns the command result among them.
    fn receive(&mut self) -> Option<CommandResult> {
        let mut found = None;
        while let Some((cluster, event)) = self.fleet.next_event() {
            match event {
                Event::Answered(id, answer) => {
                    assert_eq!(id, CommandId(self.commands));
                    if let CommandResult::Denied { view, .. } = &answer {
                        self.views.insert(cluster, Some(view.clone()));
                    }
                    assert!(found.replace(answer).is_none(), "one result per command");
                }
                Event::FleetChanged(view) => {
                    *self.view_counts.entry(cluster.clone()).or_insert(0) += 1;
                    self.views.insert(cluster, view);
                }
                Event::HeldDown(what, until) => {
                    self.unavailable.push((cluster, what, until));
                }
                other => panic!("unexpected event: {other:?}"),
            }
        }
        found
    }
}
